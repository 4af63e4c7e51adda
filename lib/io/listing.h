// SPDX-License-Identifier: Apache-2.0
// Directories that are listed again and again: each format is asked whether a
// directory is its own, and lists it. With 16,384 files a listing takes 15 ms,
// and there are a dozen formats.
#pragma once

#include <string>

namespace ckpt::io {

// The directory lost+found that mkfs makes at a file system's root, where only
// root may look. It holds nothing of a checkpoint: list_directory leaves it
// out, and so does code that walks directories itself. One that can be read is
// like any other.
bool is_lost_and_found(const std::string& path);

// While one is alive, list_directory on this thread lists a directory once and
// then repeats that answer.
class SameListings {
 public:
  SameListings();
  ~SameListings();
  SameListings(const SameListings&) = delete;
  SameListings& operator=(const SameListings&) = delete;
};

}  // namespace ckpt::io
