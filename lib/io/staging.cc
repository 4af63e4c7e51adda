// SPDX-License-Identifier: Apache-2.0
#include "lib/io/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/io/note.h"
#include "lib/io/probe.h"
#include "lib/io/remove.h"
#include "lib/io/rename.h"
#include "lib/io/retry.h"
#include "lib/io/writeback.h"
#include "lib/parallel.h"
#include "lib/text/shell.h"
#include "lib/trace.h"

namespace ckpt::io {
namespace {

constexpr std::string_view kLock = "lock";
constexpr std::string_view kJournal = "journal";

// What a name stands for; nothing (no kind) if nothing has it. A disk that
// fails does not say that something else is there.
struct stat look_at(const std::string& path) {
  struct stat facts = {};
  if (::lstat(path.c_str(), &facts) == 0) return facts;
  if (errno == ENOENT || errno == ENOTDIR) return {};
  throw io_error(path, "cannot look at it", errno);
}

// A directory itself, not a link to one.
bool is_plain_directory(const std::string& path) {
  return S_ISDIR(look_at(path).st_mode);
}

// A file with one link: writing to it changes nothing elsewhere.
bool is_plain_file(const std::string& path) {
  const struct stat facts = look_at(path);
  return S_ISREG(facts.st_mode) && facts.st_nlink == 1;
}

void make_directory(const std::string& path) {
  if (retry([&] { return ::mkdir(path.c_str(), 0777); }) == 0 ||
      errno == EEXIST)
    return;
  const int why = errno;
  const Error error(ExitCode::kIo, {path, {}},
                    "cannot create the directory: " + parent(path) + ": " +
                        std::generic_category().message(why));
  if (why != EACCES && why != EPERM && why != EROFS) throw error;
  throw error.with_hint(
      "a checkpoint is written beside its target first: choose a target in a "
      "directory that you may write to");
}

void throw_if(std::error_code why, const std::string& path) {
  if (why)
    throw Error(ExitCode::kIo, {path, {}},
                "cannot be emptied: " + why.message());
}

}  // namespace

void Staging::check(const std::string& target, const StagingOptions& options) {
  if (is_target_url(target)) return check_remote(stripped(target), options);
  check_name(target, target, options);
  check_target(target, options);
  const std::string above = parent(target);
  if (is_file(above))
    throw usage_error({above, {}}, "is a file, not a directory")
        .with_hint("choose a target in a directory");
  if (!is_directory(above))
    throw missing_error({above, {}}, "the directory of the target is missing")
        .with_hint("mkdir -p " + text::shell_path(above));
}

Staging::Staging(const std::string& target, const StagingOptions& options)
    : options_(options),
      target_((check(stripped(target), options), stripped(target))),
      place_(staging_place(target_)),
      root_(beside(place_, ".ckpt-staging")),
      bad_(root_ + ".bad"),
      aside_(beside(place_, ".ckpt-journal")),
      lock_((check_name(target_, place_, options_), place_)) {
  if (place_ == target_) {
    restore_replaced(root_ + ".old", target_);
    check_target(target_, options_);  // from here on only this run creates it
  }
  remove_salvaged();
  open_root();
}

// What a salvage that was killed rebuilt for this target. One that runs, which
// may be the one that writes here, holds its lock.
void Staging::remove_salvaged() const {
  const std::string left = join(parent(place_), "." + salvage_name(place_));
  if (!is_plain_directory(left)) return;
  const failures::Unimportant not_here;
  try {
    const TargetLock lock(join(parent(place_), salvage_name(place_)));
    remove_tree(left);
  } catch (const Error&) {
    return;
  }
}

// Ranks of a job whose first process is dead may still be writing here.
void Staging::open_root() {
  // A run was stopped while it copied: the journal is there to the end.
  if (is_plain_file(join(bad_, kJournal))) {
    throw_if(remove_tree(root_), root_);
    replace_by_rename(bad_, root_);
  }
  throw_if(remove_tree(bad_), bad_);
  const bool left_over = exists(root_);
  make_directory(root_);
  if (!is_plain_directory(root_))
    throw unsafe_error(
        {root_, {}},
        "is not a directory: the target is written in a directory "
        "of that name first")
        .with_hint("remove it, or choose another target");
  const std::string shared = join(root_, kLock);
  if (is_plain_file(shared)) {
    const Handle lock = Handle::open_write(shared);
    if (!try_lock(lock.fd(), LOCK_EX, shared))
      throw Error(ExitCode::kIo, {root_, {}},
                  "another process is writing the same target",
                  "a rank of an earlier job is still alive");
  }
  if (exists(aside_)) {
    if (!is_plain_file(aside_) || !has_mark(aside_, kJournalMark))
      throw unsafe_error({aside_, {}},
                         "is not a journal: one of that name is kept there "
                         "while the target is put in its place")
          .with_hint("move it away, or choose another target");
    // Killed between the two renames, or after them.
    if (left_over && !exists(journal_path()))
      replace_by_rename(aside_, journal_path());
    else
      remove_tree(aside_);
  }
  if (left_over && !options_.resume) clear();
}

void Staging::clear() {
  if (place_ != target_) abandon_upload(upload_record());
  // The directory, too: a flush of it may have failed.
  throw_if(remove_tree(root_), root_);
  make_directory(root_);
}

void Staging::renew(const std::function<void()>& create_all) {
  throw_if(remove_tree(bad_), bad_);
  replace_by_rename(root_, bad_);
  make_directory(root_);
  files_.clear();
  directories_.clear();
  made_.clear();
  create_all();
  throw_if(remove_tree(bad_), bad_);
}

// Copies a file from there and removes it, so that there is room for the next
// one. What can't be copied is written again, as what was lost is.
bool Staging::copy_bad(const std::string& relative_path, uint64_t size) const {
  const std::string from = join(bad_, relative_path);
  const std::string to = join(root_, relative_path);
  constexpr uint64_t kCopied = uint64_t{256} << 20;  // at once
  bool copied = false;
  if (is_plain_file(from) && free_bytes(root_).value_or(size) >= size) {
    const failures::Unimportant try_it;
    try {
      const Handle old = Handle::open_write(from);  // no source: not watched
      if (old.size() == size) {
        const Handle made = Handle::create(to);
        for (uint64_t at = 0; at < size && !interrupted(); at += kCopied)
          copy_range(old, at, made, at, std::min(kCopied, size - at));
        copied = true;
      }
    } catch (const Error&) {
      throw_if(remove_tree(to), to);
    }
  }
  if (interrupted()) throw Interrupted("");
  throw_if(remove_tree(from), from);
  return copied;
}

std::string Staging::upload_record() const { return join(root_, kUpload); }

void Staging::share_lock() const {
  const std::string path = join(root_, kLock);
  remove_tree(path);
  Handle::create(path);
}

Handle join_staging(const std::string& root) {
  const std::string path = join(root, kLock);
  Handle lock = Handle::open_write(path);
  if (!try_lock(lock.fd(), LOCK_SH, path))
    throw Error(ExitCode::kIo, {path, {}},
                "another process is writing the same target");
  return lock;
}

std::string Staging::journal_path() const { return join(root_, kJournal); }

Staging::~Staging() {
  upload_.reset();  // its threads end
  if (published_ || keep_) return;
  if (place_ != target_) abandon_upload(upload_record());
  remove_tree(root_);
  remove_tree(bad_);
}

void Staging::check_space(uint64_t bytes) const {
  const std::optional<uint64_t> free = free_bytes(root_);
  if (free && *free < bytes)
    throw Error(
        ExitCode::kIo, {parent(place_), {}},
        fmt::format("the target needs {} bytes, {} are free", bytes, *free),
        place_ == target_
            ? "free some space, or choose a target on another file system"
            : "what is uploaded lies on this machine until it is sent: set "
              "CKPT_SPOOL to a directory with more room");
}

void Staging::make_parents(const std::string& relative_path) {
  for (size_t slash = relative_path.find('/'); slash != std::string::npos;
       slash = relative_path.find('/', slash + 1)) {
    const std::string directory = relative_path.substr(0, slash);
    if (!made_.insert(directory).second) continue;
    const std::string path = join(root_, directory);
    if (!is_plain_directory(path)) throw_if(remove_tree(path), path);
    make_directory(path);
    directories_.push_back(directory);
  }
}

void Staging::create(const std::string& relative_path, uint64_t size,
                     bool keep) {
  make_parents(relative_path);
  const std::string path = join(root_, relative_path);
  files_.push_back(relative_path);
  if (keep && copy_bad(relative_path, size)) return;
  if (keep && is_plain_file(path) && Handle::open_write(path).size() == size)
    return;
  throw_if(remove_tree(path), path);
  Handle::create(path).allocate(size);
}

// One journal flush serves many files, so many threads ask at once.
void Staging::flush() const {
  constexpr size_t kThreads = 16;
  // What is sent to a server need not survive a power cut here: --resume reads
  // a spool again before relying on it, and the server keeps the target.
  const bool stays_here = place_ == target_;
  if (options_.sync && stays_here)
    parallel_for(
        files_.size(),
        [&](size_t i) {
          const std::string path = join(root_, files_[i]);
          const int fd =
              retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
          if (fd < 0) throw io_error(path, "cannot open", errno);
          const int result = retry([&] { return ::fdatasync(fd); });
          const int why = errno;
          ::close(fd);
          if (result != 0) throw flush_error(path, "cannot flush", why);
        },
        kThreads);
  throw_lost_writes();
}

// What an earlier run left and this one does not know must not be published.
void Staging::remove_strangers() const {
  const std::set<std::string> files(files_.begin(), files_.end());
  const auto keep = [&](const std::string& path) {
    return path.ends_with('/') ? made_.contains(path.substr(0, path.size() - 1))
                               : files.contains(path);
  };
  throw_if(remove_others(root_, keep), root_);
}

void Staging::sync_directories() const {
  if (!options_.sync) return;
  for (const std::string& directory : directories_)
    sync_directory(join(root_, directory));
  sync_directory(root_);
}

void Staging::publish_directory() {
  if (rename_new(root_, target_, RenameNew::kOverEmpty)) return;
  if (!options_.overwrite) throw exists_already(target_);
  const std::string old = trade_places(root_, target_);
  finish();  // before anything of the old one is lost
  if (const std::error_code why = remove_tree(old))
    leftover_ = old + ": " + why.message();
}

bool Staging::is_companion(const std::string& file) const {
  return std::ranges::any_of(options_.companions, [&](const std::string& end) {
    return file == base_name(target_) + end;
  });
}

// Nothing is in the way of the files beside a single one, or it has their bytes
// already. A companion that outlived its file says nothing of anything.
void Staging::check_beside() const {
  if (options_.overwrite) return;
  for (const std::string& file : files_) {
    const std::string path = join(parent(target_), file);
    if (file == base_name(target_) || !exists(path) ||
        (is_companion(file) && has_mark(path, kManifestMark)) ||
        has_same_bytes(join(root_, file), path))
      continue;
    throw exists_already(path);
  }
}

void Staging::publish_beside(const std::string& from, const std::string& to) {
  if (has_same_bytes(from, to)) return;
  if (options_.overwrite || is_companion(base_name(to)))
    replace_by_rename(from, to);
  else if (!rename_new(from, to, RenameNew::kNothing))
    throw exists_already(to);
}

// Publishes a single file and its companions (its manifest). Companions are
// removed first and appear last: a file without them is sound, one with
// another's would be taken for damaged.
void Staging::publish_files() {
  const std::string above = parent(target_);
  const std::string name = base_name(target_);
  check_beside();
  if (options_.overwrite) {
    for (const std::string& companion : options_.companions)
      throw_if(remove_tree(target_ + companion), target_ + companion);
    replace_by_rename(join(root_, name), target_);
  } else if (!rename_new(join(root_, name), target_, RenameNew::kNothing)) {
    throw exists_already(target_);
  }
  published_ = true;
  for (const std::string& file : files_)
    if (file != name) publish_beside(join(root_, file), join(above, file));
  finish();
  if (const std::error_code why = remove_tree(root_))
    leftover_ = root_ + ": " + why.message();
}

// DST is in place; a power cut could still undo its name.
void Staging::finish() {
  published_ = true;
  if (!options_.sync) return;
  try {
    sync_directory(parent(target_));
  } catch (const Error& error) {
    throw Error(
        ExitCode::kIo, {target_, {}},
        "is written and in its place, but its directory could not be "
        "flushed (" +
            error.problem() + ")",
        "it is whole now; a power cut could undo its name: `sync`, then "
        "look whether it is there");
  }
}

Upload* Staging::begin_upload() {
  if (place_ == target_) return nullptr;
  if (!upload_) {
    upload_ = io::begin_upload(root_, target_, files_,
                               {.single_file = options_.single_file,
                                .overwrite = options_.overwrite,
                                .record = upload_record(),
                                .companions = options_.companions});
    in_upload_ = files_.size();
  }
  return upload_.get();
}

// If this fails, what was sent stays and is known from the record.
void Staging::publish_remote() {
  Upload& upload = *begin_upload();
  upload.publish(
      {files_.begin() + static_cast<ptrdiff_t>(in_upload_), files_.end()});
  upload_.reset();
  published_ = true;
  if (const std::error_code why = remove_tree(root_))
    leftover_ = root_ + ": " + why.message();
}

void Staging::publish() {
  if (place_ != target_) return publish_remote();
  if (exists(journal_path())) replace_by_rename(journal_path(), aside_);
  try {
    remove_strangers();
    sync_directories();
    options_.single_file ? publish_files() : publish_directory();
  } catch (const Error&) {
    if (!published_ && exists(aside_))
      replace_by_rename(aside_, journal_path());
    else
      remove_tree(aside_);
    throw;
  }
  if (!options_.single_file && !published_) finish();
  remove_tree(aside_);
}

}  // namespace ckpt::io
