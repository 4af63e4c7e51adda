// SPDX-License-Identifier: Apache-2.0
// An archive as a directory: after mount_tar("x.nemo") the paths
// x.nemo/model_config.yaml and so on exist for everything that lists, looks and
// opens through lib/io. A member opens as a slice of the archive.
//
// It stays mounted until the process ends, since catalogs keep such paths. If
// nothing is mounted, this costs one look at a flag.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::io {

// Throws input_error for an archive that read_tar refuses. Reads it again if it
// is a different file by now.
void mount_tar(const std::string& path);

struct MountedEntry {
  std::string archive;  // its path
  bool directory = false;
  uint64_t offset = 0;  // of a file in the archive
  uint64_t size = 0;
};
// What is at a path inside an archive (or at the archive's own). nullopt if the
// path is in none; `absent` if it is in one that has no such member.
struct Mounted {
  bool absent = false;
  MountedEntry entry;
};
std::optional<Mounted> find_mounted(const std::string& path);
// True if `path` is the archive's own.
inline bool is_archive(const Mounted& in, const std::string& path) {
  return !in.absent && in.entry.archive == path;
}

// The names in it, sorted; nullopt if the path is not a directory of an
// archive.
std::optional<std::vector<std::string>> list_mounted(const std::string& path);

}  // namespace ckpt::io
