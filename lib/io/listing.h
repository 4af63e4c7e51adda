// SPDX-License-Identifier: Apache-2.0
// Directories that are looked at again and again: each format is asked whether
// a directory is its own, and each lists it. With 16,384 files in it a listing
// takes 15 ms, and there are a dozen formats.
#pragma once

namespace ckpt::io {

// While one of these is alive, list_directory on this thread lists a directory
// once and then says the same again.
class SameListings {
 public:
  SameListings();
  ~SameListings();
  SameListings(const SameListings&) = delete;
  SameListings& operator=(const SameListings&) = delete;
};

}  // namespace ckpt::io
