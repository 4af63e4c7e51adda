// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "api/keep/heads.h"
#include "api/keep/steps.h"
#include "ckpt/error.h"
#include "ckpt/keep.h"
#include "containers/sums/sums.h"
#include "formats/format.h"
#include "lib/decoding.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/remove.h"
#include "lib/io/rename.h"
#include "lib/io/staging.h"
#include "lib/manifest.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt {
namespace {

using library::Head;

// What a manifest says of a header while it is replaced.
constexpr std::string_view kEditing = "ckpt edit did not finish";

struct Work {
  std::string path;
  Head head;
  uint64_t old_bytes = 0;
};

// A manifest and those of its files that are edited, by its names for them.
struct Followed {
  std::string path;
  Manifest manifest;
  std::map<std::string, size_t> works;
};

class Edit {
 public:
  Edit(const std::string& path, const EditOptions& options)
      : path_(path), options_(options), wishes_(library::wishes_of(options)) {}

  Edited run();

 private:
  std::vector<std::string> files();
  void take_step(const Catalog& catalog, const formats::ReadOptions& read);
  void plan();
  void find_manifests();
  void check_manifests() const;
  void mark_unproven();
  void replace(size_t index);
  void certify();
  uint64_t write(const Followed& followed) const;
  void warn_of_lists() const;
  Manifest::Content shifted(const Manifest::Content& content,
                            const Work& work) const;

  const std::string path_;
  const EditOptions& options_;
  const std::vector<library::Wish> wishes_;
  std::vector<Work> works_;
  std::vector<Followed> followed_;
  Edited result_;
};

// Of a root the newest step is edited, as it is opened everywhere.
void Edit::take_step(const Catalog& catalog, const formats::ReadOptions& read) {
  const std::string inside = catalog.root + "/";
  if (catalog.root.empty() || !catalog.path.starts_with(inside)) return;
  result_.step = catalog.path.substr(inside.size());
  const size_t count =
      library::steps_of(path_, options_.open.format, read, &catalog).size();
  if (options_.note && count > 1)
    options_.note(fmt::format("{} holds {} steps; this is {}", path_, count,
                              result_.step));
}

std::vector<std::string> Edit::files() {
  if (io::is_url(path_))
    throw usage_error({path_, {}}, "files on a server can't be edited")
        .with_hint("ckpt fetch brings it here");
  if (io::is_file(path_)) return {path_};
  if (!io::is_directory(path_))
    throw missing_error({path_, {}}, "no such file or directory");
  const formats::ReadOptions read{
      .family = options_.open.family,
      .shard_dims_file = options_.open.shard_dims_file,
      .restrict_globals = options_.open.restrict_globals};
  const Catalog catalog = formats::open(path_, options_.open.format, read);
  take_step(catalog, read);
  std::set<std::string> paths;
  for (const File& file : catalog.files)
    if (!is_decoded(file)) paths.insert(file.path);
  return {paths.begin(), paths.end()};
}

void Edit::plan() {
  for (const std::string& path : files()) {
    if (!io::is_file(path)) continue;
    const io::Handle file = io::Handle::open_read(path);
    if (!library::has_head(file)) continue;
    if (io::is_link(path))
      throw unfaithful_error({path, {}},
                             "is a link: others may use what it leads to")
          .with_hint("edit that file itself, or a copy (cp -L)");
    Work work{.path = path,
              .head = library::new_head(file, wishes_),
              .old_bytes = file.size()};
    const bool stays = work.head.changes.empty();
    result_.files.push_back({.path = path,
                             .bytes = stays ? work.old_bytes
                                            : work.old_bytes -
                                                  work.head.old_size +
                                                  work.head.bytes.size(),
                             .changes = work.head.changes});
    works_.push_back(std::move(work));
  }
  if (works_.empty())
    throw usage_error({path_, {}},
                      "there is no safetensors or GGUF file to edit");
}

// Beside a file, and in the folders above it: whoever verifies one of those
// reads it.
void Edit::find_manifests() {
  constexpr int kLevels = 4;
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < works_.size(); ++i) {
    const std::string& path = works_[i].path;
    const auto follow = [&](const std::string& manifest,
                            const std::string& name) {
      if (!io::is_file(manifest)) return;
      if (!known.contains(manifest)) {
        known[manifest] = followed_.size();
        followed_.push_back({manifest, read_manifest(manifest), {}});
      }
      Followed& one = followed_[known[manifest]];
      if (one.manifest.files.contains(name)) one.works[name] = i;
    };
    follow(manifest_path(path), io::base_name(path));
    std::string name = io::base_name(path);
    std::string folder = io::parent(path);
    for (int level = 0; level < kLevels && !folder.empty(); ++level) {
      follow(io::join(folder, kManifestName), name);
      name = io::join(io::base_name(folder), name);
      const std::string above = io::parent(folder);
      if (above == folder) break;
      folder = above;
    }
  }
  std::erase_if(followed_, [&](const Followed& one) {
    // Nothing changes in any of its files, and nothing was left unfinished.
    return std::ranges::none_of(one.works, [&](const auto& work) {
      const auto content = one.manifest.contents.find(work.first);
      return !works_[work.second].head.changes.empty() ||
             (content != one.manifest.contents.end() &&
              content->second.unproven == kEditing);
    });
  });
}

// Bytes that are not those of the manifest get no new checksum.
void Edit::check_manifests() const {
  for (const Followed& one : followed_)
    for (const auto& [name, index] : one.works) {
      const Work& work = works_[index];
      const auto content = one.manifest.contents.find(name);
      if (work.head.changes.empty() || content == one.manifest.contents.end() ||
          !content->second.unproven.empty())
        continue;
      const io::Handle file = io::Handle::open_read(work.path);
      if (one.manifest.files.at(name) == file.size() &&
          sha256_of(file, content->second.ranges) == content->second.sha256)
        continue;
      throw input_error({work.path, {}},
                        "its header is not the one that {} has the SHA-256 of",
                        io::base_name(one.path))
          .with_hint("ckpt verify says what else has changed");
    }
}

uint64_t Edit::write(const Followed& followed) const {
  const std::string text = to_json(followed.manifest);
  const std::string draft = io::join(
      io::parent(followed.path), "." + io::base_name(followed.path) + ".new");
  io::remove_tree(draft);
  {
    const io::Handle file = io::Handle::create(draft);
    file.write(0, std::string_view(text));
    if (options_.sync) file.sync();
  }
  io::replace_by_rename(draft, followed.path);
  if (options_.sync) io::sync_directory(io::parent(followed.path));
  return text.size();
}

void Edit::mark_unproven() {
  for (Followed& one : followed_) {
    Manifest marked = one.manifest;
    for (const auto& [name, index] : one.works)
      if (!works_[index].head.changes.empty()) {
        const auto at = marked.contents.find(name);
        if (at == marked.contents.end() || !at->second.unproven.empty())
          continue;
        at->second.sha256.clear();
        at->second.unproven = kEditing;
      }
    write({one.path, marked, {}});
  }
}

void Edit::replace(size_t index) {
  const Work& work = works_[index];
  if (interrupted())
    throw Interrupted("stopped between two files; run it again to resume");
  const uint64_t size = result_.files[index].bytes;
  const io::Handle from = io::Handle::open_read(work.path);
  io::Staging staging(
      work.path,
      {.single_file = true, .overwrite = true, .sync = options_.sync});
  const std::string name = io::base_name(work.path);
  staging.create(name, size);
  const std::string staged = io::join(staging.root(), name);
  const io::Handle to = io::Handle::open_write(staged);
  const uint64_t begin = work.head.bytes.size();
  const bool shared = begin == work.head.old_size &&
                      io::reflink(from, 0, to, 0, work.old_bytes);
  if (!shared) {
    staging.check_space(size);
    io::copy_range(from, work.head.old_size, to, begin,
                   work.old_bytes - work.head.old_size);
  }
  to.write(0, std::string_view(work.head.bytes));
  struct stat facts;
  if (::stat(work.path.c_str(), &facts) == 0)
    ::chmod(staged.c_str(), facts.st_mode & 07777);
  library::check_staged(from, io::Handle::open_read(staged), work.head);
  Session::current()->watch.check_unchanged();
  Session::current()->watch.end();  // it is replaced now
  staging.flush();
  staging.publish();
  result_.files[index].written = true;
}

Manifest::Content Edit::shifted(const Manifest::Content& content,
                                const Work& work) const {
  Manifest::Content fresh = content;
  if (!work.head.changes.empty())
    for (uint64_t& at : fresh.ranges)
      if (at >= work.head.old_size)
        at = at - work.head.old_size + work.head.bytes.size();
  fresh.unproven.clear();
  fresh.sha256 = sha256_of(io::Handle::open_read(work.path), fresh.ranges);
  return fresh;
}

void Edit::certify() {
  for (Followed& one : followed_) {
    for (const auto& [name, index] : one.works) {
      const Work& work = works_[index];
      const io::Handle file = io::Handle::open_read(work.path);
      one.manifest.files[name] = file.size();
      const auto at = one.manifest.contents.find(name);
      if (at != one.manifest.contents.end() &&
          (at->second.unproven.empty() || at->second.unproven == kEditing))
        at->second = shifted(at->second, work);
      if (one.path == manifest_path(work.path) && one.manifest.identity)
        one.manifest.identity = identity_of(file);
    }
    result_.manifests.emplace_back(one.path, write(one));
  }
}

void Edit::warn_of_lists() const {
  if (!options_.note) return;
  std::vector<std::string> beside;
  for (const std::string& name : io::list_directory(io::parent(works_[0].path)))
    beside.push_back(io::join(io::parent(works_[0].path), name));
  for (const sums::Sum& sum : sums::listed(beside).sums)
    for (const Work& work : works_)
      if (sum.file == work.path && !work.head.changes.empty())
        options_.note(fmt::format("{} has another checksum now than {} says",
                                  io::base_name(work.path), sum.source));
}

Edited Edit::run() {
  const Session::Own session;
  Session::current()->watch.begin();
  plan();
  find_manifests();
  check_manifests();
  if (options_.dry_run) return std::move(result_);
  const InterruptScope scope;
  const bool any = std::ranges::any_of(
      works_, [](const Work& work) { return !work.head.changes.empty(); });
  if (any) {
    Session::current()->watch.end();
    Session::current()->watch.begin();
    mark_unproven();
    for (size_t i = 0; i < works_.size(); ++i)
      if (!works_[i].head.changes.empty()) replace(i);
  }
  certify();
  if (any) warn_of_lists();
  return std::move(result_);
}

}  // namespace

Edited edit(const std::string& path, const EditOptions& options) {
  return Edit(path, options).run();
}

}  // namespace ckpt
