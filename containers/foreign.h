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
  std::string_view what;   // "a git-lfs pointer"
  std::string_view hint;   // what to do; may be empty
  bool stands_in = false;  // for data that is elsewhere: the download failed
  bool packed = false;     // compressed or an archive: anything may be inside
};

// What other programs keep their tensors in. One row has all that ckpt knows
// about one: how files are recognised and named, and what to do instead.
struct OtherFormat {
  std::string_view ending;   // of file names
  std::string_view title;    // "GGUF": what ckpt does not write
  Foreign file;              // hint: for one that should be read
  std::string_view to_make;  // hint: for one that is wanted; may be empty
  bool weights = false;      // no such file is anything but a model's weights
  std::string_view magic = {};
};
std::span<const OtherFormat> other_formats();

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
