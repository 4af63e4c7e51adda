// SPDX-License-Identifier: Apache-2.0
// Recognises files that are none of ours by their first bytes or their name, so
// that an error can say more than "unknown".
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

// A name in a directory that shows what the directory is.
struct ForeignDirectory {
  std::string_view name;
  bool exact;  // otherwise: names with this ending
  Foreign foreign;
};
std::span<const ForeignDirectory> foreign_directories();

// How many bytes from the front are enough.
inline constexpr size_t kForeignHead = 512;

std::optional<Foreign> recognise(std::string_view head,
                                 std::string_view file_name);

// The same for a file on disk; nothing if it can't be read.
std::optional<Foreign> recognise_file(const std::string& path);

}  // namespace ckpt::formats
