// SPDX-License-Identifier: Apache-2.0
// How much room disks have, and, measured briefly, how fast they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::io {

// What this user may still write there. nullopt where the file system doesn't
// say: ramfs has no size, nor have some that are served through FUSE.
std::optional<uint64_t> free_bytes(const std::string& path);

// Bytes per second, read past the page cache from places all over `files`, by
// several threads, for about `seconds`. nullopt where a file system has no such
// reads, or where no file has a MiB.
std::optional<double> probe_reads(const std::vector<std::string>& files,
                                  double seconds);

// Bytes per second, written to an unnamed file in `directory` and flushed.
// nullopt where such a file can't be created, or the disk is nearly full.
std::optional<double> probe_writes(const std::string& directory,
                                   double seconds);

// True if both paths are on one file system, which reads and writes share.
bool on_one_disk(const std::string& a, const std::string& b);

}  // namespace ckpt::io
