// SPDX-License-Identifier: Apache-2.0
// Shared by convert, reshard and unshard: a catalog becomes a checkpoint at
// DST, or a dry run says what it would be.
#pragma once

#include <string>

#include "app/commands/request.h"
#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/layout.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// SRC, DST and the options that all writing commands take.
void add_request_options(CLI::App& app, WriteRequest& request,
                         const std::string& target_help);

// Leaves out what a target of this layout is not to hold: with --model-only all
// but the model, in one file of weights the optimizer's state, unless
// --with-optimizer asks for it.
Catalog with_state_as_asked(const WriteRequest& request, Catalog source,
                            const Layout& layout);

// The source, selected and renamed, with the rules of --family and
// --shard-dims on its tensors.
Catalog open_for_write(WriteRequest& request);

// Lays out, plans, proves; then writes and publishes, unless it is a dry run.
ExitCode write_checkpoint(const WriteRequest& request, Catalog source,
                          Layout layout);

// Throws usage_error if one is inside the other: the source is never changed.
void check_apart(const std::string& source, const std::string& target);

// True if a checkpoint of one format keeps its topology in the other: the
// formats are the same, or share a grid. Between others (the writers of a dcp,
// fairseq2's ranks) the sizes mean different things. A format without files for
// each rank holds whole tensors; write_checkpoint refuses sizes that don't
// apply.
bool same_grid(std::string_view source, std::string_view target);

}  // namespace ckpt::app
