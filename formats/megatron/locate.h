// SPDX-License-Identifier: Apache-2.0
// Finds the directory of one checkpoint from what the user names.
//
//   <save>/latest_checkpointed_iteration.txt   "7" or "release"
//   <save>/iter_0000007/  or  release/         metadata.json …
//   <any of these>/weights/, model_weights/    NeMo's archives
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/file_names.h"
#include "formats/megatron/strategy.h"

namespace ckpt::megatron {

// The directory that a tracker's word names: "iter_0000007", "release". Nothing
// if the word is neither a number nor "release".
std::optional<std::string> iteration_directory(std::string_view word);
// The number in "iter_0000007".
std::optional<uint64_t> iteration_number(std::string_view directory);

// A distributed checkpoint (with metadata.json) at or below a path.
struct DistFound {
  std::string path;     // of the checkpoint; "" if not found
  std::string root;     // the given path, if it is a training root
  std::string chosen;   // how it was found; "" if it is the given path
  std::string warning;  // something to know about that choice
  Config config;
  std::string why;  // one clause, found or not
};
// Throws input_error for a damaged metadata.json or tracker.
DistFound locate_dist(const std::string& path);

// Adds the files in a checkpoint's directory that the checkpoint itself does
// not name: as sidecars, or as problems for what is left alone.
void add_strays(const std::string& directory, Catalog& catalog);

}  // namespace ckpt::megatron
