// SPDX-License-Identifier: Apache-2.0
#include "lib/io/remote.h"

#include <cerrno>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"
#include "lib/io/remote_below.h"
#include "lib/parallel.h"

namespace ckpt::io {
namespace {

bool stat_here(const std::string& path, struct stat& facts) {
  int result = ::stat(path.c_str(), &facts);
  while (result != 0 && errno == EINTR) result = ::stat(path.c_str(), &facts);
  if (result == 0) return true;
  // Nothing is there; anything else is a failure, which making the error notes.
  const int errnum = errno;
  if (errnum != ENOENT && errnum != ENOTDIR && errnum != ENAMETOOLONG &&
      errnum != ELOOP)
    (void)io_error(path, "cannot look at it", errnum);
  errno = errnum;
  return false;
}

}  // namespace

bool stat_any(const std::string& path, struct stat& facts) {
  if (const auto in = find_mounted(path); in && !is_archive(*in, path)) {
    // A member is as old as its archive.
    if (in->absent || !stat_any(in->entry.archive, facts)) return false;
    facts.st_mode = in->entry.directory ? S_IFDIR : S_IFREG;
    facts.st_size = static_cast<off_t>(in->entry.size);
    return true;
  }
  if (!is_url(path)) return stat_here(path, facts);
  const auto there = stat_remote(path);
  if (there) facts = *there;
  return there.has_value();
}

std::vector<RemoteEntry> files_below(const std::string& url) {
  constexpr size_t kMostFiles = 1'000'000, kMostFolders = 100'000;
  constexpr size_t kMostPath = 4096;  // PATH_MAX of Linux
  constexpr size_t kLooks = 32;       // at once
  std::vector<RemoteEntry> files;
  std::vector<std::string> folders{""};
  if (is_url(url)) look_below_remote(url);
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::string folder = folders[i];
    // A directory that lists itself, or a server that makes them up.
    if (folder.size() > kMostPath)
      throw input_error({url, {}},
                        "its directories lie in each other, deeper than a path "
                        "of {} bytes goes",
                        kMostPath);
    std::vector<std::string> paths = list_directory(join(url, folder));
    if (!folder.empty())
      for (std::string& one : paths) one = join(folder, one);
    // A web server is asked for each of them; other listings told already.
    std::vector<std::optional<struct stat>> facts(paths.size());
    parallel_for(
        paths.size(),
        [&](size_t k) { facts[k] = stat_remote(join(url, paths[k])); }, kLooks);
    for (size_t k = 0; k < paths.size(); ++k) {
      // Listed but missing, like a broken symlink: whoever reads it reports
      // that.
      if (!facts[k])
        files.push_back({std::move(paths[k]), 0});
      else if (S_ISDIR(facts[k]->st_mode))
        folders.push_back(std::move(paths[k]));
      else
        files.push_back(
            {std::move(paths[k]), static_cast<uint64_t>(facts[k]->st_size)});
    }
    if (files.size() > kMostFiles || folders.size() > kMostFolders)
      throw input_error({url, {}}, "more than {} files lie in it", kMostFiles);
  }
  return files;
}

}  // namespace ckpt::io
