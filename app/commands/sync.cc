// SPDX-License-Identifier: Apache-2.0
// Makes a directory, or what is below s3:// or gs://, the same as another one.
//
//   DST/.STEP.ckpt-sync     a step that isn't there yet, until it is whole
//   DST/.ckpt-fetch         files of one that is (fetch_here.cc)
//
// What is there is compared by its bytes, or by a checksum that stands for
// them. Times are not: clocks differ, and what `cp -p` or a rewind restored
// has an old one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "api/places.h"
#include "app/command.h"
#include "app/commands/fetch.h"
#include "app/options/options.h"
#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/progress.h"
#include "app/print/steps.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "lib/interrupt.h"
#include "lib/io/rename.h"
#include "lib/io/upload.h"
#include "lib/parallel.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSyncExamples =
    "ckpt sync run /backup/run              # again: only what differs\n"
    "ckpt sync run s3://bucket/run --exclude '*.log'\n"
    "ckpt sync s3://bucket/run run -n\n"
    "ckpt sync run /backup/run --delete-extra";
constexpr std::string_view kStagedEnding = ".ckpt-sync";

enum class SyncFate : uint8_t {
  kSame,
  kNew,
  kReplaced,
  kExtra,
  kDeleted,
  kLeft
};

std::string_view word(SyncFate fate) {
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
    case SyncFate::kLeft:
      break;
  }
  return "left_out";
}

struct Entry {
  std::string path;
  uint64_t bytes = 0;
  SyncFate fate = SyncFate::kSame;
  std::string why = {};  // it is left out
};

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

class Sync : public Command {
 public:
  std::string_view name() const override { return "sync"; }
  std::string_view help() const override {
    return "make one folder or bucket the same as another, by what differs";
  }
  std::string_view examples() const override { return kSyncExamples; }
  void add_options(CLI::App& app) override;
  ExitCode run() override;

 private:
  using Wanted = std::function<bool(const std::string& path)>;

  void check_places() const;
  void list_source();
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
  std::string json() const;
  std::string text() const;

  bool there() const { return io::is_url(target_); }
  std::string at_target(const std::string& path) const {
    return path.empty() ? target_ : io::join(target_, path);
  }

  std::string source_, target_;
  std::vector<std::string> include_, exclude_;
  bool delete_ = false, dry_run_ = false, sync_ = true;

  Wanted wanted_;
  FetchJob found_;                            // all of the source
  std::map<std::string, std::string> links_;  // to directories of the source
  std::map<std::string, SyncFate> fates_;
  std::vector<Entry> others_;           // that are no files to be copied
  std::set<std::string> target_files_;  // that the target had
  std::set<std::string> target_links_;  // to directories
};

void Sync::add_options(CLI::App& app) {
  app.add_option("SRC", source_, "A directory, a file or a URL")
      ->required()
      ->group("Arguments");
  app.add_option("DST", target_, "A directory, s3:// or gs://")
      ->required()
      ->group("Arguments");
  const std::string what = "What";
  app.add_option("--include", include_, "Only files that match one of these")
      ->type_name("GLOB")
      ->group(what);
  app.add_option("--exclude", exclude_, "No files that match one of these")
      ->type_name("GLOB")
      ->group(what);
  app.add_flag("--delete-extra", delete_,
               "Delete what DST has and SRC lacks, once all is copied")
      ->group(what);
  const std::string how = "How";
  app.add_flag("-n,--dry-run", dry_run_, "Compare, copy nothing")->group(how);
  app.add_flag_callback(
         "--no-fsync", [&] { sync_ = false; }, "Don't wait for the disk")
      ->group(how);
  app.add_flag_callback(
         "--overwrite", [] {}, "Nothing more: what differs is replaced anyway")
      ->group(how);
  add_rate_option(app);
}

void Sync::check_places() const {
  if (there() && !io::is_target_url(target_))
    throw usage_error({target_, {}}, "can be read, not written")
        .with_hint("targets are directories, s3:// and gs://");
  if (there() && delete_)
    throw usage_error({target_, {}},
                      "--delete-extra deletes on this machine only")
        .with_hint("-n names what SRC lacks");
  library::check_target_place(target_);
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
  const Wanted asked = wanted(include_, exclude_);
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
  if (found_.single || io::is_url(source_)) return;
  std::vector<std::string> links;
  files_here(source_, &links);
  for (const std::string& path : links) {
    if (!wanted_(path)) continue;
    const std::string link = io::join(source_, path);
    std::error_code failed;
    links_[path] = fs::read_symlink(link, failed).string();
    if (failed) throw io_error(link, "cannot read the link", failed.value());
  }
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
  std::vector<io::RemoteEntry> all;
  std::vector<std::string> links;
  if (io::is_directory(target_))
    all = there() ? io::files_below(target_) : files_here(target_, &links);
  target_links_.insert(links.begin(), links.end());
  refuse_links();
  for (const io::RemoteEntry& one : all) target_files_.insert(one.path);
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

void Sync::find_extra() {
  for (const std::string& path : target_files_) {
    if (fates_.contains(path) || !wanted_(path)) continue;
    struct stat facts {};
    const bool known = io::stat_any(at_target(path), facts);
    others_.push_back({path, known ? static_cast<uint64_t>(facts.st_size) : 0,
                       SyncFate::kExtra});
  }
}

// A link to a directory of the source leads there in the target, too.
void Sync::compare_links() {
  for (const auto& [path, text] : links_) {
    Entry entry{path, 0, SyncFate::kNew};
    const fs::path lead =
        (fs::path(path).parent_path() / text).lexically_normal();
    const std::string to = at_target(path);
    std::error_code failed;
    if (there())
      entry.why = "a link to a directory, and objects have none";
    else if (fs::path(text).is_absolute() || *lead.begin() == "..")
      entry.why = fmt::format("a link to {}, which is not in SRC", text);
    else if (io::is_link(to))
      entry.fate = fs::read_symlink(to, failed) == text ? SyncFate::kSame
                                                        : SyncFate::kReplaced;
    else if (fs::exists(fs::symlink_status(to, failed)))
      entry.why = "a link to a directory, and DST has something else there";
    if (!entry.why.empty()) entry.fate = SyncFate::kLeft;
    others_.push_back(std::move(entry));
  }
}

// Whatever appears at once: the steps of a run from old to new, then the rest.
std::vector<std::string> Sync::folders() const {
  std::vector<std::string> folders;
  if (found_.single) return {""};
  std::vector<StepRow> steps = steps_of(source_, {}, nullptr);
  if (steps.empty()) {
    try {
      const Catalog newest = formats::open(source_, "", {});
      steps = steps_of(source_, {}, &newest);
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
  job.sync = sync_;
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
  for (const io::RemoteEntry& one : files_here(job.target, nullptr))
    if (!whole.contains(one.path))  // SRC had it before an earlier run ended
      fs::remove(io::join(job.target, one.path), failed);
  if (!io::rename_new(job.target, target, io::RenameNew::kOverEmpty))
    throw unfaithful_error({target, {}}, "appeared while it was copied")
        .with_hint("run it again: what is there is compared");
  if (sync_) io::sync_directory(parent);
}

void Sync::link() {
  for (Entry& entry : others_) {
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
  for (const Entry& entry : others_)
    if (entry.fate == SyncFate::kExtra) extra.insert(entry.path);
  for (const std::string& path : target_files_)
    if (!extra.contains(path)) keep(path);
  for (Entry& entry : others_) {
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

std::string Sync::json() const {
  uint64_t bytes = 0, copied = 0;
  std::vector<Entry> entries = others_;
  for (const FetchFile& file : found_.files) {
    const SyncFate fate = fates_.at(file.path);
    entries.push_back({file.path, file.bytes, fate});
    bytes += file.bytes;
    if (fate != SyncFate::kSame) copied += file.bytes;
  }
  std::ranges::sort(entries, {}, &Entry::path);
  JsonWriter json;
  json.begin_document("sync").member("source", source_);
  json.member("target", target_).member("dry_run", dry_run_);
  json.member("bytes", bytes).member("bytes_copied", dry_run_ ? 0 : copied);
  json.member("bytes_differ", copied);
  json.key("files").begin_array();
  for (const Entry& entry : entries) {
    json.begin_object().member("path", entry.path);
    json.member("bytes", entry.bytes).member("fate", word(entry.fate));
    json.text_or_null("why", entry.why);
    json.end_object();
  }
  json.end_array().key("written").begin_array();
  for (const Entry& entry : entries) {
    if (dry_run_ ||
        (entry.fate != SyncFate::kNew && entry.fate != SyncFate::kReplaced))
      continue;
    json.begin_object().member("path", at_target(entry.path));
    json.member("bytes", entry.bytes).end_object();
  }
  json.end_array().end_object();
  return std::move(json).text();
}

std::string Sync::text() const {
  std::string said;
  uint64_t count[6] = {}, bytes = 0;
  const auto add = [&](const Entry& entry) {
    ++count[static_cast<size_t>(entry.fate)];
    const bool differs =
        entry.fate == SyncFate::kNew || entry.fate == SyncFate::kReplaced;
    if (differs) bytes += entry.bytes;
    if (entry.fate == SyncFate::kLeft)
      said += fmt::format("left out  {}: {}\n", text::printable(entry.path),
                          text::printable(entry.why));
    else if (entry.fate != SyncFate::kSame &&
             (dry_run_ || output.verbosity > 0))
      said +=
          fmt::format("{:<8}  {}  {}\n", word(entry.fate),
                      text::printable(entry.path), text::iec_size(entry.bytes));
  };
  for (const FetchFile& file : found_.files)
    add({file.path, file.bytes, fates_.at(file.path)});
  for (const Entry& entry : others_) add(entry);
  const auto of = [&](SyncFate fate) {
    return count[static_cast<size_t>(fate)];
  };
  said += fmt::format(
      "{}, {}, {}copied",
      text::counted(of(SyncFate::kNew) + of(SyncFate::kReplaced), "file"),
      text::iec_size(bytes), dry_run_ ? "would be " : "");
  if (of(SyncFate::kReplaced))
    said += fmt::format(" ({} replaced)", of(SyncFate::kReplaced));
  said += fmt::format("; {} {} the same", of(SyncFate::kSame),
                      dry_run_ ? "are" : "were");
  if (of(SyncFate::kDeleted))
    said += fmt::format("; {} deleted",
                        text::counted(of(SyncFate::kDeleted), "file"));
  if (of(SyncFate::kExtra))
    said += fmt::format("; {} in DST alone{}",
                        text::counted(of(SyncFate::kExtra), "file"),
                        delete_   ? " would be deleted"
                        : there() ? " stays"
                                  : ", which --delete-extra deletes");
  return said + "\n";
}

ExitCode Sync::run() {
  check_places();
  Session::current()->watch.begin();
  Session::current()->watch.ignore_below(target_);
  const InterruptScope scope;
  found_.progress = make_progress(output);
  list_source();
  compare();
  find_extra();
  compare_links();
  if (!dry_run_) {
    copy();
    link();
    if (delete_) delete_extra();
  }
  if (output.json)
    print(json());
  else if (output.verbosity >= 0)
    print_folded(text());
  return ExitCode::kDone;
}

}  // namespace

std::unique_ptr<Command> make_sync() { return std::make_unique<Sync>(); }

}  // namespace ckpt::app
