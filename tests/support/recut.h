// SPDX-License-Identifier: Apache-2.0
// A checkpoint cut in two unrelated ways: the plans that the engine, ranks and
// GPUs are tested with. Without casts the target's files are what files_of()
// says (random_catalog.h).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/engine.h"
#include "tests/support/random_catalog.h"
#include "tests/support/temp_file.h"

namespace ckpt::test {

struct Recut {
  Catalog source;
  Target target;
};

// One to five random tensors, each cut twice, in up to four files on both
// sides. `change`, if given, is called with a tensor of the source and turns it
// into the target's.
Recut random_recut(Random& random,
                   const std::function<void(Tensor&)>& change = {});

// Sets the target's files to those of its catalog.
void set_target_files(Target& target);

// Writes the source's files into a directory and records their paths in the
// catalog.
void write_source(Catalog& source, const TempDir& dir);

// Adds a file with these bytes to the source.
void add_file(Catalog& source, const TempDir& dir,
              std::span<const std::byte> bytes);

struct Moved {
  std::vector<std::vector<std::byte>> files;
  reshard::RunResult result;
};

// Plans and runs, into memory; throws if replicas of the source differ.
Moved move_to_memory(const Recut& recut, const reshard::RunOptions& options);

}  // namespace ckpt::test
