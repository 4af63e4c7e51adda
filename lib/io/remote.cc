// SPDX-License-Identifier: Apache-2.0
#include "lib/io/remote.h"

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"

namespace ckpt::io {

bool stat_any(const std::string& path, struct stat& facts) {
  if (const auto in = find_mounted(path); in && !is_archive(*in, path)) {
    // As old as its archive.
    if (in->absent || !stat_any(in->entry.archive, facts)) return false;
    facts.st_mode = in->entry.directory ? S_IFDIR : S_IFREG;
    facts.st_size = static_cast<off_t>(in->entry.size);
    return true;
  }
  if (!is_url(path)) return ::stat(path.c_str(), &facts) == 0;
  const auto there = stat_remote(path);
  if (there) facts = *there;
  return there.has_value();
}

std::vector<RemoteEntry> files_below(const std::string& url) {
  constexpr size_t kMostFiles = 1'000'000, kMostFolders = 100'000;
  std::vector<RemoteEntry> files;
  std::vector<std::string> folders{""};
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::string folder = folders[i];
    for (const std::string& name : list_directory(join(url, folder))) {
      const std::string path = folder.empty() ? name : join(folder, name);
      const auto facts = stat_remote(join(url, path));
      if (!facts) continue;
      if (S_ISDIR(facts->st_mode))
        folders.push_back(path);
      else
        files.push_back({path, static_cast<uint64_t>(facts->st_size)});
    }
    if (files.size() > kMostFiles || folders.size() > kMostFolders)
      throw input_error({url, {}}, "more than {} files lie in it", kMostFiles);
  }
  return files;
}

}  // namespace ckpt::io
