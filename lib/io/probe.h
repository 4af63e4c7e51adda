// SPDX-License-Identifier: Apache-2.0
// How fast disks are, from a short look: what a dry run's estimate is made of.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ckpt::io {

// Bytes a second, read from places all over `files` and past the page cache,
// by several threads, for about `seconds`. Nothing where a file system has no
// such reads, or where no file has a MiB.
std::optional<double> probe_reads(const std::vector<std::string>& files,
                                  double seconds);

// Bytes a second, written to a file without a name in `directory` and flushed.
// Nothing where such a file can't be made, or the disk is nearly full.
std::optional<double> probe_writes(const std::string& directory,
                                   double seconds);

// True if both paths are on one file system, which reads and writes share.
bool on_one_disk(const std::string& a, const std::string& b);

}  // namespace ckpt::io
