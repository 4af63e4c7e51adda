// SPDX-License-Identifier: Apache-2.0
// A job of several processes (mpirun, srun), as the command line sees it: rank
// 0 runs the command and is the only one that prints.
#pragma once

#include <cstdint>
#include <functional>

namespace CLI {
class App;
}

namespace ckpt::app {

class JsonWriter;

// --exchange
void add_ranks_options(CLI::App& app);

// Joins the job that a launcher started this process in, if there is one: on
// rank 0 runs `command`, elsewhere works for rank 0. Returns the exit status,
// the same one on all ranks.
int run_in_job(const std::function<int()>& command);

// Number of ranks; 1 without a launcher.
uint32_t rank_count();

// "ranks": what each rank read and wrote; nothing without a launcher.
void write_ranks(JsonWriter& json);

}  // namespace ckpt::app
