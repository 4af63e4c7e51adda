// SPDX-License-Identifier: Apache-2.0
// From what the user names to the directory of one checkpoint.
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

// The directory that a tracker's word names: "iter_0000007", "release".
// Nothing if it is neither a number nor that word.
std::optional<std::string> iteration_directory(std::string_view word);
// The number in "iter_0000007".
std::optional<uint64_t> iteration_number(std::string_view directory);

// A distributed checkpoint (with metadata.json) at or below a path.
struct DistFound {
  std::string path;     // of the checkpoint; "" if none was found
  std::string root;     // what was given, if that is a training root
  std::string chosen;   // how it was found; "" if it is what was given
  std::string warning;  // something about that which should be known
  Config config;
  std::string why;  // one clause, whatever was found
};
// Throws input_error for a metadata.json or a tracker that is damaged.
DistFound locate_dist(const std::string& path);

// Signs of a checkpoint of Megatron's in a directory that has no
// metadata.json: incomplete save. "" if there are none.
std::string unfinished_sign(const std::string& directory);

// Files of a checkpoint's directory that the checkpoint itself does not name:
// sidecars, and problems for what is left alone.
void add_strays(const std::string& directory, Catalog& catalog);

}  // namespace ckpt::megatron
