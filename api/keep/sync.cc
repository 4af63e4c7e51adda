// SPDX-License-Identifier: Apache-2.0
// Makes a directory, or what is below s3:// or gs://, the same as another one.
//
//   DST/.STEP.ckpt-sync     a step that isn't there yet, until it is whole
//   DST/.ckpt-fetch         files of one that is (api/fetch/here.cc)
//
// What is there is compared by its bytes, or by a checksum that stands for
// them. Times are not: clocks differ, and what `cp -p` or a rewind restored
// has an old one.
#include "api/keep/sync.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "api/engine.h"
#include "api/fetch/fetch.h"
#include "api/keep/steps.h"
#include "api/places.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "lib/interrupt.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"
#include "lib/io/upload.h"
#include "lib/parallel.h"
#include "lib/session.h"

namespace ckpt {
namespace library {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStagedEnding = ".ckpt-sync";

// A name that a run of ckpt gives to what it is still writing.
bool is_unfinished(const std::string& path) {
  return std::ranges::any_of(fs::path(path), [](const fs::path& part) {
    const std::string name = part.string();
    return name == ".ckpt-fetch" || name == io::kUploadClaim ||
           (name.starts_with('.') &&
            (name.ends_with(kStagedEnding) || name.ends_with(".ckpt-lock") ||
             name.ends_with(".ckpt-pruned")));
  });
}

bool is_below(const std::string& path, const std::string& folder) {
  return folder.empty() || path.starts_with(folder + "/");
}

class Sync {
 public:
  Sync(std::string source, std::string target, const SyncOptions& options,
       const Progress& progress, bool paced)
      : source_(std::move(source)),
        target_(std::move(target)),
        options_(options) {
    found_.progress = progress;
    found_.paced = paced;
    found_.warn = options.note;
  }

  Synced run();

 private:
  using Wanted = std::function<bool(const std::string& path)>;

  void check_places() const;
  void list_source();
  void leave_out(SyncedFile entry);
  bool is_left_out(const std::string& path) const;
  void refuse_links() const;
  void compare();
  SyncFate fate_of(const FetchFile& file);
  bool is_same(const FetchFile& file, const std::string& to);
  void find_extra();
  void compare_links();
  void copy();
  void copy_folder(const std::string& folder,
                   const std::vector<const FetchFile*>& files);
  void copy_here(FetchJob& job);
  void copy_there(const std::string& folder, FetchJob& job);
  void link();
  void delete_extra();
  std::vector<std::string> folders() const;
  Synced result();

  bool there() const { return io::is_url(target_); }
  std::string at_target(const std::string& path) const {
    return path.empty() ? target_ : io::join(target_, path);
  }

  const std::string source_, target_;
  const SyncOptions& options_;

  Wanted wanted_;
  FetchJob found_;                            // all of the source
  std::map<std::string, std::string> links_;  // to directories of the source
  std::map<std::string, SyncFate> fates_;
  std::vector<SyncedFile> others_;      // that are no files to be copied
  std::set<std::string> left_out_;      // whose content the target lacks
  std::set<std::string> target_files_;  // that the target had
  std::set<std::string> target_links_;  // to directories
};

void Sync::check_places() const {
  if (there() && !io::is_target_url(target_))
    throw usage_error({target_, {}}, "can be read, not written")
        .with_hint("targets are directories, s3:// and gs://");
  if (there() && options_.delete_extra)
    throw usage_error({target_, {}},
                      "--delete-extra deletes on this machine only")
        .with_hint("-n names what SRC lacks");
  check_target_place(target_);
  if (io::is_file(target_))
    throw usage_error({target_, {}}, "is a file, and DST is a directory");
  if (there() != io::is_url(source_)) return;
  const auto real = [&](const std::string& path) {
    std::error_code failed;
    const std::string found =
        there() ? path : fs::weakly_canonical(path, failed).string();
    return found.ends_with('/') ? found : found + "/";
  };
  const std::string from = real(source_), to = real(target_);
  if (from.starts_with(to) || to.starts_with(from))
    throw usage_error({target_, {}}, "{}",
                      from == to ? "is SRC itself"
                      : to.starts_with(from)
                          ? "lies in SRC, and would be copied into itself"
                          : "SRC lies in it, and would be among what differs");
}

void Sync::list_source() {
  const Wanted asked = wanted(options_.include, options_.exclude);
  wanted_ = [asked](const std::string& path) {
    return !is_unfinished(path) && asked(path);
  };
  list_files(found_, source_, wanted_);
  add_listed_sums(found_);
  if (found_.single &&
      fs::path(target_).extension() ==
          fs::path(found_.files[0].path).extension() &&
      !io::is_directory(target_))
    throw usage_error({target_, {}},
                      "DST is a directory, and this is named like the file")
        .with_hint("name the directory that the file belongs in");
  for (const std::string& path : found_.links) {
    if (!wanted_(path)) continue;
    const std::string link = io::join(source_, path);
    std::error_code failed;
    links_[path] = fs::read_symlink(link, failed).string();
    if (failed) throw io_error(link, "cannot read the link", failed.value());
  }
  for (const FetchOdd& one : found_.odd)
    leave_out({one.path, 0, SyncFate::kLeftOut, one.why});
}

// Nobody deletes for that what the target has of it.
void Sync::leave_out(SyncedFile entry) {
  left_out_.insert(entry.path);
  others_.push_back(std::move(entry));
}

bool Sync::is_same(const FetchFile& file, const std::string& to) {
  std::error_code failed;
  const bool from_there = io::is_url(file.url);
  if (!there() && !from_there && fs::equivalent(file.url, to, failed))
    return true;
  const auto opened = [](const std::string& path) {
    return io::Handle::open_read(path);
  };
  if (!there() && !file.sha256.empty())
    return sums::hash_of(opened(to), sums::Algorithm::kSha256) == file.sha256;
  if (there() != from_there &&
      io::has_etag_of(there() ? to : file.url, opened(there() ? file.url : to)))
    return true;
  return same_bytes(found_, file, to);
}

SyncFate Sync::fate_of(const FetchFile& file) {
  const std::string to = at_target(file.path);
  struct stat facts;
  if (!io::stat_any(to, facts)) return SyncFate::kNew;
  if (S_ISDIR(facts.st_mode))
    throw unfaithful_error({to, {}}, "is a directory, and SRC has a file there")
        .with_hint("remove it, or leave the file out with --exclude");
  if (static_cast<uint64_t>(facts.st_size) != file.bytes)
    return SyncFate::kReplaced;
  return is_same(file, to) ? SyncFate::kSame : SyncFate::kReplaced;
}

// What goes through a link of the target would replace files of another step,
// or of somebody else.
void Sync::refuse_links() const {
  if (target_links_.empty()) return;
  for (const FetchFile& file : found_.files)
    for (fs::path at = fs::path(file.path).parent_path(); !at.empty();
         at = at.parent_path())
      if (target_links_.contains(at.string()))
        throw unfaithful_error({at_target(at.string()), {}},
                               "is a link, and SRC has a directory there")
            .with_hint(
                "remove the link, or leave the directory out with "
                "--exclude");
}

void Sync::compare() {
  FilesHere all;
  if (io::is_directory(target_) && there())
    all.files = io::files_below(target_);
  else if (io::is_directory(target_))
    all = files_here(target_);
  target_links_.insert(all.links.begin(), all.links.end());
  refuse_links();
  for (const io::RemoteEntry& one : all.files) target_files_.insert(one.path);
  for (const FetchOdd& one : all.odd) target_files_.insert(one.path);
  uint64_t bytes = 0;
  std::vector<const FetchFile*> both;
  for (const FetchFile& file : found_.files) {
    fates_[file.path] = SyncFate::kNew;
    if (!target_files_.contains(file.path) &&
        (there() || !io::is_directory(at_target(file.path))))
      continue;
    both.push_back(&file);
    bytes += file.bytes;
  }
  found_.progress.begin("comparing", bytes);
  parallel_for(
      both.size(),
      [&](size_t i) {
        if (interrupted()) throw Interrupted("stopped; nothing was written");
        fates_.at(both[i]->path) = fate_of(*both[i]);
      },
      kFetchThreads);
  found_.progress.end();
}

bool Sync::is_left_out(const std::string& path) const {
  for (std::string at = path; !at.empty();
       at = fs::path(at).parent_path().string())
    if (left_out_.contains(at)) return true;
  return false;
}

void Sync::find_extra() {
  for (const std::string& path : target_files_) {
    if (fates_.contains(path) || !wanted_(path) || is_left_out(path)) continue;
    struct stat facts {};
    const bool known = io::stat_any(at_target(path), facts);
    others_.push_back({path,
                       known ? static_cast<uint64_t>(facts.st_size) : 0,
                       SyncFate::kExtra,
                       {}});
  }
}

// A link to a directory of the source leads there in the target, too. Where
// objects are, what it leads to is copied, and nothing is missing.
void Sync::compare_links() {
  for (const auto& [path, text] : links_) {
    SyncedFile entry{path, 0, SyncFate::kNew, {}};
    const fs::path lead =
        (fs::path(path).parent_path() / text).lexically_normal();
    const std::string to = at_target(path);
    std::error_code failed;
    if (fs::path(text).is_absolute() || *lead.begin() == "..") {
      entry.why = fmt::format("a link to {}, which is not in SRC", text);
    } else if (there()) {
      entry.fate = SyncFate::kLeftOut;
      entry.why = "a link to a directory, and objects have none";
      others_.push_back(std::move(entry));
      continue;
    } else if (io::is_link(to)) {
      entry.fate = fs::read_symlink(to, failed) == text ? SyncFate::kSame
                                                        : SyncFate::kReplaced;
    } else if (fs::exists(fs::symlink_status(to, failed))) {
      entry.why = "a link to a directory, and DST has something else there";
    }
    if (entry.why.empty()) {
      others_.push_back(std::move(entry));
      continue;
    }
    entry.fate = SyncFate::kLeftOut;
    leave_out(std::move(entry));
  }
}

// Whatever appears at once: the steps of a run from old to new, then the rest.
std::vector<std::string> Sync::folders() const {
  std::vector<std::string> folders;
  if (found_.single) return {""};
  std::vector<StepRow> steps = steps_of(source_, "", {}, nullptr);
  if (steps.empty()) {
    try {
      const Catalog newest = formats::open(source_, "", {});
      steps = steps_of(source_, "", {}, &newest);
    } catch (const Error&) {
      // What it holds makes no difference to a copy.
    }
  }
  std::ranges::transform(steps, std::back_inserter(folders), &StepRow::name);
  folders.emplace_back();
  return folders;
}

void Sync::copy() {
  std::set<const FetchFile*> done;
  for (const std::string& folder : folders()) {
    std::vector<const FetchFile*> files;
    for (const FetchFile& file : found_.files) {
      const SyncFate fate = fates_.at(file.path);
      if ((fate == SyncFate::kNew || fate == SyncFate::kReplaced) &&
          is_below(file.path, folder) && done.insert(&file).second)
        files.push_back(&file);
    }
    if (!files.empty()) copy_folder(folder, files);
  }
}

void Sync::copy_folder(const std::string& folder,
                       const std::vector<const FetchFile*>& files) {
  FetchJob job;
  job.target = at_target(folder);
  job.sync = options_.sync;
  job.paced = found_.paced;
  job.overwrite = true;  // it was compared
  job.verify = true;
  uint64_t bytes = 0;
  for (const FetchFile* file : files) {
    FetchFile& one = job.files.emplace_back(*file);
    if (!folder.empty()) one.path = one.path.substr(folder.size() + 1);
    bytes += file->bytes;
  }
  job.progress = found_.progress;
  job.progress.begin("copying", bytes);
  there() ? copy_there(folder, job) : copy_here(job);
  job.progress.end();
}

void Sync::copy_there(const std::string& folder, FetchJob& job) {
  const bool is_new = std::ranges::none_of(
      target_files_,
      [&](const std::string& path) { return is_below(path, folder); });
  for (const FetchFile& file : job.files)
    target_files_.insert(folder.empty() ? file.path
                                        : io::join(folder, file.path));
  if (is_new) return fetch_there(job);
  // Beside others, each appears by itself.
  std::vector<FetchFile> files = std::move(job.files);
  std::ranges::stable_sort(files, {}, is_index);
  for (const FetchFile& file : files) {
    FetchJob one;
    one.target = io::join(job.target, file.path);
    one.single = one.overwrite = true;
    one.progress = job.progress;
    one.paced = job.paced;
    one.files = {file};
    one.files[0].path = io::base_name(file.path);
    fetch_there(one);
  }
}

void Sync::copy_here(FetchJob& job) {
  const std::string target = job.target;
  const std::string parent = io::parent(target);
  const bool is_new = !io::is_directory(target);
  std::error_code failed;
  if (is_new) {
    // What an earlier run left is resumed, if it is one's own.
    fs::create_directories(parent, failed);
    if (failed) throw io_error(parent, "cannot make it", failed.value());
    job.target = io::join(
        parent, fmt::format(".{}{}", io::base_name(target), kStagedEnding));
  }
  if (is_new && io::is_link(job.target))
    throw unsafe_error({job.target, {}},
                       "is a link, and no run of ckpt made it")
        .with_hint("remove it, then run it again");
  Session::current()->watch.ignore_below(job.target);
  fetch_here(job);
  // A checksum that was promised was compared on the way.
  for (const FetchFile& file : job.files)
    if (!io::is_url(file.url) &&
        !same_bytes(job, file, io::join(job.target, file.path)))
      throw input_error({at_target(file.path), {}},
                        "what was written is not what {} has", file.url)
          .with_hint(
              "the disk or the memory of this machine changed bytes: "
              "run it again");
  if (!is_new) return;
  std::set<std::string> whole;
  for (const FetchFile& file : job.files) whole.insert(file.path);
  for (const io::RemoteEntry& one : files_here(job.target).files)
    if (!whole.contains(one.path))  // SRC had it before an earlier run ended
      fs::remove(io::join(job.target, one.path), failed);
  if (!io::rename_new(job.target, target, io::RenameNew::kOverEmpty))
    throw unfaithful_error({target, {}}, "appeared while it was copied")
        .with_hint("run it again: what is there is compared");
  if (options_.sync) io::sync_directory(parent);
}

void Sync::link() {
  for (SyncedFile& entry : others_) {
    if (entry.fate != SyncFate::kNew && entry.fate != SyncFate::kReplaced)
      continue;
    const std::string to = at_target(entry.path);
    const std::string draft = io::join(
        io::parent(to), fmt::format(".{}{}", io::base_name(to), kStagedEnding));
    std::error_code failed;
    fs::create_directories(io::parent(to), failed);
    fs::remove(draft, failed);
    fs::create_directory_symlink(links_.at(entry.path), draft, failed);
    if (failed) throw io_error(draft, "cannot make the link", failed.value());
    io::replace_by_rename(draft, to);
  }
}

// A folder that goes whole gets a name first that no reader takes for a step.
void Sync::delete_extra() {
  std::set<std::string> kept{""};
  const auto keep = [&](const std::string& path) {
    for (std::string at = path; !at.empty();
         at = fs::path(at).parent_path().string())
      kept.insert(at);
  };
  for (const FetchFile& file : found_.files) keep(file.path);
  for (const auto& [path, text] : links_) keep(path);
  for (const std::string& path : target_links_) keep(path);
  std::set<std::string> extra;
  for (const SyncedFile& entry : others_)
    if (entry.fate == SyncFate::kExtra) extra.insert(entry.path);
  for (const std::string& path : target_files_)
    if (!extra.contains(path)) keep(path);
  for (SyncedFile& entry : others_) {
    if (entry.fate != SyncFate::kExtra) continue;
    std::string top = entry.path;
    for (std::string above = fs::path(top).parent_path().string();
         !kept.contains(above); above = fs::path(top).parent_path().string())
      top = above;
    std::string path = at_target(top);
    std::error_code failed;
    if (top != entry.path && fs::exists(path, failed)) {
      const std::string aside =
          io::join(io::parent(path),
                   fmt::format(".{}.ckpt-pruned", io::base_name(path)));
      fs::remove_all(aside, failed);  // what a killed run left
      io::replace_by_rename(path, aside);
      path = aside;
    }
    fs::remove_all(path, failed);
    if (failed) throw io_error(path, "cannot delete it", failed.value());
    entry.fate = SyncFate::kDeleted;
  }
}

Synced Sync::result() {
  Synced result;
  result.complete = left_out_.empty();
  result.files = std::move(others_);
  for (FetchFile& file : found_.files) {
    const SyncFate fate = fates_.at(file.path);
    result.bytes += file.bytes;
    if (fate != SyncFate::kSame) result.bytes_differ += file.bytes;
    result.files.push_back({std::move(file.path), file.bytes, fate, {}});
  }
  std::ranges::sort(result.files, {}, &SyncedFile::path);
  return result;
}

Synced Sync::run() {
  check_places();
  Session::current()->watch.begin();
  Session::current()->watch.ignore_below(target_);
  const InterruptScope scope;
  list_source();
  compare();
  compare_links();
  find_extra();
  if (!options_.dry_run) {
    copy();
    link();
    if (options_.delete_extra) delete_extra();
  }
  return result();
}

}  // namespace

Synced sync_with(const std::string& source, const std::string& target,
                 const SyncOptions& options, const Progress& progress,
                 bool paced) {
  return Sync(source, target, options, progress, paced).run();
}

}  // namespace library

std::string_view name(SyncFate fate) {
  switch (fate) {
    case SyncFate::kSame:
      return "same";
    case SyncFate::kNew:
      return "new";
    case SyncFate::kReplaced:
      return "replaced";
    case SyncFate::kExtra:
      return "extra";
    case SyncFate::kDeleted:
      return "deleted";
    case SyncFate::kLeftOut:
      break;
  }
  return "left_out";
}

Synced sync(const std::string& source, const std::string& target,
            const SyncOptions& options) {
  const Session::Own session;
  return library::sync_with(
      library::source_place(source), library::source_place(target), options,
      options.progress ? library::stages_told(options.progress) : Progress{},
      false);
}

}  // namespace ckpt
