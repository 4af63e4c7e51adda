// SPDX-License-Identifier: Apache-2.0
#include "containers/hf/hub_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"

namespace ckpt::formats {
namespace {

std::string main_commit(const std::string& path) {
  const std::string ref = io::join(path, "refs/main");
  if (!io::is_file(ref)) return {};
  const std::string text = io::read_file(ref, 4096);
  return text.substr(0, text.find_first_of(" \r\n/"));
}

}  // namespace

bool is_hub_repo_name(const std::string& name) {
  return name.starts_with("models--") || name.starts_with("datasets--") ||
         name.starts_with("spaces--");
}

std::optional<Snapshot> find_snapshot(const std::string& path) {
  if (io::is_url(path) || !is_hub_repo_name(io::base_name(path)))
    return std::nullopt;
  const std::string all = io::join(path, "snapshots");
  if (!io::is_directory(all)) return std::nullopt;
  const std::string commit = main_commit(path);
  if (!commit.empty() && io::is_directory(io::join(all, commit)))
    return Snapshot{io::join(all, commit),
                    fmt::format("revision {}, which refs/main names", commit)};
  Snapshot newest;
  timespec latest = {};
  for (const std::string& name : io::list_directory(all)) {
    struct stat facts;
    const std::string one = io::join(all, name);
    if (::stat(one.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) continue;
    const timespec& when = facts.st_mtim;
    if (!newest.path.empty() && std::pair(when.tv_sec, when.tv_nsec) <
                                    std::pair(latest.tv_sec, latest.tv_nsec))
      continue;
    latest = when;
    newest = {one, fmt::format("revision {}, the newest that is there", name)};
  }
  if (newest.path.empty())
    throw missing_error({path, {}}, "no snapshot in it")
        .with_hint("the download did not end: fetch it again");
  return newest;
}

}  // namespace ckpt::formats
