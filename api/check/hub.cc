// SPDX-License-Identifier: Apache-2.0
#include "api/check/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hub_cache.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> repos_of(const std::string& path) {
  std::vector<std::string> repos;
  for (const std::string& name : io::list_directory(path))
    if (formats::is_hub_repo_name(name)) repos.push_back(io::join(path, name));
  return repos;
}

bool is_dead(const fs::directory_entry& entry) {
  std::error_code failure;
  return entry.is_symlink(failure) && !fs::exists(entry.path(), failure);
}

// A repository without weights is no failure: tokenizers, data sets.
bool is_no_checkpoint(const Error& error) {
  return error.code() == ExitCode::kMissing;
}

}  // namespace

bool is_hub(const std::string& path) {
  return !io::is_url(path) && io::is_directory(path) &&
         !formats::is_hub_repo_name(io::base_name(path)) &&
         !repos_of(path).empty();
}

HubRepo look_at_repo(const std::string& path) {
  HubRepo repo;
  if (io::is_url(path) || !formats::is_hub_repo_name(io::base_name(path)) ||
      !io::is_directory(path))
    return repo;
  const std::string blobs = io::join(path, "blobs");
  if (io::is_directory(blobs))
    for (const std::string& name : io::list_directory(blobs)) {
      const std::string blob = io::join(blobs, name);
      if (name.ends_with(".incomplete"))
        repo.problems.push_back(
            warning("unfinished_download", {blob, {}},
                    "a download that did not end; fetch it again"));
      else if (io::is_file(blob))
        repo.blobs.push_back(blob);
    }
  const std::string snapshots = io::join(path, "snapshots");
  if (!io::is_directory(snapshots)) return repo;
  std::error_code failure;
  for (auto at = fs::recursive_directory_iterator(
           snapshots, fs::directory_options::skip_permission_denied, failure);
       !failure && at != fs::recursive_directory_iterator();
       at.increment(failure))
    if (is_dead(*at))
      repo.problems.push_back(damage("missing_file", {at->path().string(), {}},
                                     "links to a blob that is not there"));
  return repo;
}

Report check_hub(const std::string& path, const Selection& selection,
                 const IntegrityOptions& options, const Engine& engine) {
  Report all;
  for (const std::string& repo : repos_of(path)) {
    Report one;
    std::string found;
    try {
      one = check_integrity(repo, selection, options, engine);
      found = fmt::format("{}, {}", name(one.verdict),
                          text::counted(one.tensors, "tensor"));
      if (!one.open.empty()) found += ": " + one.open;
    } catch (const Error& error) {
      if (!is_no_checkpoint(error)) throw;
      check_blobs(repo, options, engine, one);
      found = "no checkpoint that is known; its blobs were checked";
    }
    all.problems.push_back(remark("repository", {repo, {}}, "{}", found));
    std::ranges::move(one.problems, std::back_inserter(all.problems));
    all.tensors += one.tensors;
    all.bytes += one.bytes;
    all.files += one.files;
    all.unproven = all.unproven || one.unproven;
    all.without_checksum += one.without_checksum;
    if (all.open.empty() && !one.open.empty())
      all.open = fmt::format("{}: {}", io::base_name(repo), one.open);
  }
  judge(all, options.strict);
  return all;
}

}  // namespace ckpt::library
