// SPDX-License-Identifier: Apache-2.0
// A command in the memory that it may have.
//
// Headers and plan are made while the heap is bounded by --max-mem. If they
// don't fit, they are given up at once. Then some tensors at a time are opened
// and laid out, and what they take is added up, so that the refusal names a
// figure that would do without exceeding the bound to find it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/commands/request.h"
#include "ckpt/ckpt.h"

namespace ckpt::app {

// The memory that parts of a plan take, in bytes.
struct Counted {
  uint64_t held = 0;   // by tensors, pieces and plan: a sum
  uint64_t read = 0;   // of that by the source
  uint64_t files = 0;  // by files, which parts have in common: the most
  // Asked for where a target can't be laid out in parts: it is taken from the
  // source's pieces and from how many ranks there are to be.
  bool rough = false;
};

// `write` opens, lays out and writes; it may be called several times, with
// request.counted set: then it ends with count_part(). Throws resource_error if
// memory does not suffice.
ExitCode within_memory(WriteRequest& request,
                       const std::function<ExitCode()>& write);

// The same for a command that opens checkpoints to look at them. `reads`: it
// reads all tensors of each.
ExitCode within_memory(const EngineOptions& engine, const SourceOptions& source,
                       const std::vector<std::string>& paths, bool reads,
                       const std::function<ExitCode()>& look);

// Lays out and plans a part of the source, and adds what it takes.
void count_part(Catalog source, const Layout& layout, const std::string& path,
                SaveOptions options, Counted& counted);

}  // namespace ckpt::app
