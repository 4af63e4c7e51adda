// SPDX-License-Identifier: Apache-2.0
// Measures briefly how fast disks are, for a dry run's estimate.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ckpt::io {

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
