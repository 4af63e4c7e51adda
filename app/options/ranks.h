// SPDX-License-Identifier: Apache-2.0
// How the ranks of a job share its work: --exchange, --exchange-buffer.
#pragma once

namespace CLI {
class App;
}

namespace ckpt::app {

void add_ranks_options(CLI::App& app);

}  // namespace ckpt::app
