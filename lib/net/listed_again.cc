// SPDX-License-Identifier: Apache-2.0
// The look at the end of a run: what listings say of files that were read.
#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/net/listed.h"

namespace ckpt::net {
namespace {

constexpr size_t kPage = 1000;  // names on a page of a listing
// Files of a directory for which it is listed rather than asked for each.
constexpr size_t kFew = 4;

}  // namespace

Folders ListedStore::list_again(const std::string& path,
                                const std::vector<std::string>&, bool below) {
  if (below) return list_below(path);
  std::optional<Listing> top = list_all(path);
  Folders all;
  if (top) all.emplace(path, *std::move(top));
  return all;
}

// All keys below a directory, in order; nothing if they aren't all known.
std::optional<std::vector<std::string>> ListedStore::keys_below(
    const std::string& root) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> keys, open{root};
  while (!open.empty()) {
    const std::string folder = std::move(open.back());
    open.pop_back();
    const auto known = listings_.find(folder);
    if (known == listings_.end() || !known->second) return std::nullopt;
    for (const auto& [name, facts] : known->second->entries) {
      std::string path = folder + "/" + name;
      if (facts.directory)
        open.push_back(std::move(path));
      else
        keys.push_back(path.substr(root.size() + 1));
    }
  }
  std::ranges::sort(keys);
  return keys;
}

// Lists the tree around all these directories if that is fewer requests than
// they take one by one, as those of zarr's arrays do.
void ListedStore::tree_again(const std::vector<std::string>& folders,
                             size_t requests, Folders& now) {
  if (folders.size() < 2) return;
  std::string root = folders.front();
  for (const std::string& folder : folders)
    while (folder != root && !folder.starts_with(root + "/"))
      root = folder_of(root);
  if (parse_place(root).key.empty()) return;
  const auto keys = keys_below(root);
  if (!keys || 1 + keys->size() / kPage >= requests) return;
  const failures::Unimportant if_each_is_asked;
  try {
    now = list_again(root, *keys, true);
  } catch (const Error&) {
    now.clear();
  }
}

// Lists directories anew where that is fewer requests than a look at each file.
// What a listing can't tell is left out.
std::map<std::string, Facts> ListedStore::look_at_all_again(
    const std::vector<std::string>& paths) {
  std::map<std::string, std::vector<const std::string*>> in_folder;
  for (const std::string& path : paths)
    in_folder[folder_of(path)].push_back(&path);
  std::vector<std::string> folders;
  size_t requests = 0;
  for (const auto& [folder, files] : in_folder) {
    folders.push_back(folder);
    requests += std::min(files.size(), kFew);
  }
  std::map<std::string, Facts> told;
  const auto tell = [&](const Folders& now) {
    for (const auto& [folder, listing] : now) {
      const auto files = in_folder.find(folder);
      if (files == in_folder.end()) continue;
      for (const std::string* const path : files->second)
        if (const auto found = listing.entries.find(last_name(*path));
            found != listing.entries.end() && !found->second.directory)
          told.emplace(*path, found->second);
    }
  };
  Folders tree;
  tree_again(folders, requests, tree);
  tell(tree);
  for (const auto& [folder, files] : in_folder) {
    if (tree.contains(folder)) continue;
    std::vector<std::string> keys;
    {
      const std::lock_guard lock(mutex_);
      const auto known = listings_.find(folder);
      if (known == listings_.end() || !known->second) continue;
      for (const auto& [name, facts] : known->second->entries)
        keys.push_back(facts.directory ? name + "/" : name);
    }
    if (files.size() < kFew * (1 + keys.size() / kPage)) continue;
    std::ranges::sort(keys);
    const failures::Unimportant if_each_is_asked;
    try {
      tell(list_again(folder, keys, false));
    } catch (const Error&) {
      continue;
    }
  }
  return told;
}

}  // namespace ckpt::net
