#include "lib/io/staging.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "ckpt/error.h"

namespace ckpt::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLock = "lock";
constexpr std::string_view kJournal = "journal";

bool exists(const std::string& path) {
  struct stat facts;
  return ::lstat(path.c_str(), &facts) == 0;
}

void make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return;
  const int why = errno;
  const Error error(ExitCode::kIo, {path, {}},
                    std::string("cannot create the directory: ") +
                        fs::path(path).parent_path().string() + ": " +
                        std::generic_category().message(why));
  if (why != EACCES && why != EPERM && why != EROFS) throw error;
  throw error.with_hint(
      "a checkpoint is written beside its target first: choose a target in a "
      "directory that you may write to");
}

// A target that is there: an empty directory may be filled, all else needs
// --overwrite.
void check_target(const std::string& target, const StagingOptions& options) {
  if (!exists(target)) return;
  const bool directory = is_directory(target);
  if (directory && options.single_file)
    throw usage_error({target, {}}, "is a directory, the target is one file");
  if (!directory && !options.single_file)
    throw usage_error({target, {}}, "is a file, the target is a directory");
  if (options.overwrite) return;
  if (directory && list_directory(target).empty()) return;
  throw unfaithful_error({target, {}}, "exists already")
      .with_hint(
          "choose another target, or replace this one with --overwrite (it is "
          "removed only when the new one is whole)");
}

// Takes the lock of a staging directory; -1 if another process has it.
int take_lock(const std::string& root) {
  const std::string path = join(root, kLock);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0)
    throw Error(ExitCode::kIo, {path, {}},
                std::string("cannot create: ") +
                    std::generic_category().message(errno));
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  ::close(fd);
  return -1;
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw Error(ExitCode::kIo, {to, {}},
                "cannot rename " + from +
                    " to it: " + std::generic_category().message(errno));
}

}  // namespace

void Staging::check(const std::string& target, const StagingOptions& options) {
  check_target(target, options);
  const std::string above = parent(target);
  if (!is_directory(above))
    throw missing_error({above, {}}, "the directory of the target is missing")
        .with_hint("mkdir -p " + above);
}

Staging::Staging(const std::string& target, const StagingOptions& options)
    : options_(options), target_(target) {
  while (target_.size() > 1 && target_.ends_with('/')) target_.pop_back();
  check(target_, options_);
  const std::string above = parent(target_);
  root_ = join(above, "." + base_name(target_) + ".ckpt-staging");
  const bool left_over = exists(root_);
  make_directory(root_);
  lock_ = take_lock(root_);
  if (lock_ < 0)
    throw Error(ExitCode::kIo, {root_, {}},
                "another process is writing the same target");
  if (left_over && !options_.resume) clear();
}

void Staging::clear() {
  for (const std::string& name : list_directory(root_))
    if (name != kLock) fs::remove_all(join(root_, name));
}

void Staging::share_lock() const {
  if (::flock(lock_, LOCK_SH) != 0) throw io_error(root_, "share lock", errno);
}

Handle join_staging(const std::string& root) {
  const std::string path = join(root, kLock);
  Handle lock = Handle::open_write(path);
  if (::flock(lock.fd(), LOCK_SH | LOCK_NB) != 0)
    throw Error(ExitCode::kIo, {path, {}},
                "another process is writing the same target");
  return lock;
}

std::string Staging::journal_path() const { return join(root_, kJournal); }

Staging::~Staging() {
  if (!published_ && !keep_) {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  if (lock_ >= 0) ::close(lock_);
}

void Staging::check_space(uint64_t bytes) const {
  struct statvfs facts;
  if (::statvfs(root_.c_str(), &facts) != 0) return;
  const uint64_t free = uint64_t{facts.f_bavail} * facts.f_frsize;
  if (free < bytes)
    throw Error(
        ExitCode::kIo, {parent(target_), {}},
        fmt::format("the target needs {} bytes, {} are free", bytes, free),
        "free some space, or choose a target on another file system");
}

void Staging::create(const std::string& relative_path, uint64_t size) {
  for (size_t slash = relative_path.find('/'); slash != std::string::npos;
       slash = relative_path.find('/', slash + 1)) {
    const std::string directory = relative_path.substr(0, slash);
    if (std::ranges::find(directories_, directory) != directories_.end())
      continue;
    make_directory(join(root_, directory));
    directories_.push_back(directory);
  }
  const std::string path = join(root_, relative_path);
  files_.push_back(relative_path);
  if (options_.resume && is_file(path) &&
      Handle::open_write(path).size() == size)
    return;
  ::unlink(path.c_str());
  Handle::create(path).allocate(size);
}

// One flush serves many files of a journal, so many threads ask at once.
void Staging::sync_all() const {
  constexpr size_t kThreads = 16;
  std::atomic<size_t> next = 0;
  std::atomic<int> failed = 0;
  const auto work = [&] {
    for (size_t i = next++; i < files_.size(); i = next++) {
      const int fd =
          ::open(join(root_, files_[i]).c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0 || ::fdatasync(fd) != 0) failed = errno;
      if (fd >= 0) ::close(fd);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t t = 1; t < std::min(kThreads, files_.size()); ++t)
      threads.emplace_back(work);
    work();
  }
  if (failed)
    throw Error(ExitCode::kIo, {root_, {}},
                "cannot flush: " + std::generic_category().message(failed));
  for (const std::string& directory : directories_)
    sync_directory(join(root_, directory));
  sync_directory(root_);
}

void Staging::publish_directory() {
  fs::remove(join(root_, kLock));
  fs::remove(journal_path());
  if (!exists(target_) ||
      (is_directory(target_) && list_directory(target_).empty())) {
    rename_path(root_, target_);
    return;
  }
  // Swap where the file system can: then DST is never absent, not even
  // between two renames.
  if (::renameat2(AT_FDCWD, root_.c_str(), AT_FDCWD, target_.c_str(),
                  RENAME_EXCHANGE) == 0) {
    fs::remove_all(root_);
    return;
  }
  const std::string old = root_ + ".old";
  rename_path(target_, old);
  rename_path(root_, target_);
  fs::remove_all(old);
}

// A single file and what stands beside it (its manifest): the file last.
void Staging::publish_files() {
  const std::string above = parent(target_);
  for (const std::string& file : files_)
    if (file != base_name(target_))
      rename_path(join(root_, file), join(above, file));
  rename_path(join(root_, base_name(target_)), target_);
  fs::remove_all(root_);
}

void Staging::publish() {
  if (options_.sync) sync_all();
  options_.single_file ? publish_files() : publish_directory();
  published_ = true;
  if (options_.sync) sync_directory(parent(target_));
}

}  // namespace ckpt::io
