// SPDX-License-Identifier: Apache-2.0
#include "lib/io/mount.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/tar.h"

namespace ckpt::io {
namespace {

struct Tree {
  struct Node {
    bool directory = false;
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  std::map<std::string, Node, std::less<>> nodes;  // by relative name
  struct stat facts = {};                          // of the archive
};

struct Mounts {
  std::atomic<bool> any = false;
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const Tree>, std::less<>> trees;
};

Mounts& mounts() {
  static Mounts* const all = new Mounts;
  return *all;
}

std::shared_ptr<const Tree> read_tree(const std::string& path) {
  auto tree = std::make_shared<Tree>();
  stat_any(path, tree->facts);
  tree->nodes[""] = {.directory = true};
  for (TarMember& member : read_tar(Handle::open_read(path))) {
    for (size_t at = member.name.find('/'); at != std::string::npos;
         at = member.name.find('/', at + 1))
      tree->nodes[member.name.substr(0, at)] = {.directory = true};
    tree->nodes[std::move(member.name)] = {member.directory, member.offset,
                                           member.size};
  }
  return tree;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
         a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
         a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// "a//b/./c/" as "a/b/c".
std::string relative(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, slash);
    path.remove_prefix(std::min(slash + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

struct Place {
  std::string archive;
  std::shared_ptr<const Tree> tree;
  std::string name;
};

std::optional<Place> place_of_path(const std::string& path) {
  Mounts& all = mounts();
  if (!all.any.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(all.mutex);
  for (const auto& [archive, tree] : all.trees) {
    if (!path.starts_with(archive)) continue;
    if (path.size() > archive.size() && path[archive.size()] != '/') continue;
    return Place{archive, tree,
                 relative(std::string_view(path).substr(archive.size()))};
  }
  return std::nullopt;
}

}  // namespace

void mount_tar(const std::string& path) {
  Mounts& all = mounts();
  struct stat now = {};
  stat_any(path, now);
  {
    const std::lock_guard lock(all.mutex);
    const auto known = all.trees.find(path);
    if (known != all.trees.end() && same_file(known->second->facts, now))
      return;
  }
  auto tree = read_tree(path);
  const std::lock_guard lock(all.mutex);
  all.trees.insert_or_assign(path, std::move(tree));
  all.any.store(true, std::memory_order_release);
}

std::optional<Mounted> find_mounted(const std::string& path) {
  const auto place = place_of_path(path);
  if (!place) return std::nullopt;
  const auto node = place->tree->nodes.find(place->name);
  if (node == place->tree->nodes.end()) return Mounted{.absent = true};
  return Mounted{false,
                 {place->archive, node->second.directory, node->second.offset,
                  node->second.size}};
}

std::optional<std::vector<std::string>> list_mounted(const std::string& path) {
  const auto place = place_of_path(path);
  if (!place) return std::nullopt;
  const auto& nodes = place->tree->nodes;
  const auto self = nodes.find(place->name);
  if (self == nodes.end() || !self->second.directory) return std::nullopt;
  const std::string prefix = place->name.empty() ? "" : place->name + "/";
  std::vector<std::string> names;
  for (auto at = nodes.lower_bound(prefix);
       at != nodes.end() && at->first.starts_with(prefix); ++at) {
    const std::string_view name =
        std::string_view(at->first).substr(prefix.size());
    if (!name.empty() && name.find('/') == name.npos) names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace ckpt::io
