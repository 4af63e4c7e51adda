// SPDX-License-Identifier: Apache-2.0
// Finds which directory of a path is a DeepSpeed checkpoint, and its files
// (deepspeed.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::deepspeed {

enum class FileKind : uint8_t { kModel, kOptim, kLayer, kExpert, kExpertOptim };

struct FileName {
  FileKind kind = FileKind::kModel;
  std::optional<uint32_t> dp;  // kExpertOptim: the expert-parallel rank
  uint32_t mp = 0;
  uint32_t layer = 0;   // kLayer; kExpert: the how many-th MoE layer
  uint32_t expert = 0;  // kExpert, among all ranks'
  std::string name;     // in the directory
};

// Nothing for a name that DeepSpeed does not write.
std::optional<FileName> parse_name(std::string_view name);

struct Found {
  bool yes = false;
  std::string why;        // one clause, whatever was found
  std::string directory;  // the tag's; empty if `latest` leads out
  std::string tag;        // the one followed; "" if the path is a tag's
  std::string pointer;    // the file that names it
  bool universal = false;
};

// Looks at names and at `latest`; does not throw for damaged files.
Found locate(const std::string& path);

// Tags beside the one followed that have its name with a larger number.
// DeepSpeed writes `latest` last, so these are of saves that it did not finish
// (or of a run that `latest` was not copied from).
std::vector<std::string> newer_tags(const Found& found);

// The files of a tag's directory, by kind, then mp, dp, layer, expert. Throws
// input_error if two files belong to the same rank.
std::vector<FileName> list_files(const std::string& directory);

// The parameters below DIRECTORY/zero; names may be nested.
std::vector<std::string> list_parameters(const std::string& directory);

}  // namespace ckpt::deepspeed
