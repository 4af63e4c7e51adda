// SPDX-License-Identifier: Apache-2.0
// A job of several processes (mpirun, srun), as the command line sees it: rank
// 0 runs the command and is the only one that prints.
#pragma once

#include <functional>

namespace ckpt::app {

// Joins the job that a launcher started this process in, if there is one. Rank
// 0 runs `command`; other ranks work for it. Returns the exit status, the same
// on all ranks.
int run_in_job(const std::function<int()>& command);

}  // namespace ckpt::app
