// SPDX-License-Identifier: Apache-2.0
// An archive as a directory: after mount_tar("x.nemo") there are the paths
// x.nemo/model_config.yaml and so on, for everything that lists, looks and
// opens through lib/io. A member opens as a slice of the archive.
//
// It stays so until the process ends: catalogs keep such paths. Who mounted
// nothing pays one look at a flag.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::io {

// Throws input_error for an archive that read_tar refuses. Reads it again if
// it is another file by now.
void mount_tar(const std::string& path);

struct MountedEntry {
  std::string archive;  // its path
  bool directory = false;
  uint64_t offset = 0;  // of a file in the archive
  uint64_t size = 0;
};
// What a path inside of an archive (or the archive's own) is. Nothing if it
// lies in none; `absent` if it lies in one that has no such member.
struct Mounted {
  bool absent = false;
  MountedEntry entry;
};
std::optional<Mounted> find_mounted(const std::string& path);
// True if the path that was asked for is the archive's own.
inline bool is_archive(const Mounted& in, const std::string& path) {
  return !in.absent && in.entry.archive == path;
}

// Names below, sorted; nothing if the path is not a directory of an archive.
std::optional<std::vector<std::string>> list_mounted(const std::string& path);

}  // namespace ckpt::io
