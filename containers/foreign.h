// SPDX-License-Identifier: Apache-2.0
// What a file is that is none of ours, told from its first bytes or its name,
// so that an error can say more than "unknown".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::formats {

struct Foreign {
  std::string_view what;  // "a git-lfs pointer"
  std::string_view hint;  // what to do; may be empty
};

// A name in a directory that tells what the directory is.
struct ForeignDirectory {
  std::string_view name;
  bool exact;  // else: names that end so
  Foreign foreign;
};
std::span<const ForeignDirectory> foreign_directories();

// How many bytes of the front tell it.
inline constexpr size_t kForeignHead = 512;

std::optional<Foreign> recognise(std::string_view head,
                                 std::string_view file_name);

// The same for a file on disk; nothing if it can't be read.
std::optional<Foreign> recognise_file(const std::string& path);

}  // namespace ckpt::formats
