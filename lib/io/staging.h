// A target under construction: a directory beside DST that becomes DST by one
// rename when it is whole. DST never exists half-done.
//
//   DIR/.NAME.ckpt-staging/   files in their final layout, and `lock`
//   DIR/NAME                  appears at publish()
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/file.h"

namespace ckpt::io {

struct StagingOptions {
  bool single_file = false;  // DST is a file, not a directory
  bool overwrite = false;    // DST may exist; it is replaced at the end
  bool resume = false;       // keep what an earlier run left
  bool sync = true;          // flush files and directories before the rename
};

class Staging {
 public:
  // The checks of the constructor that need no writing, for dry runs.
  static void check(const std::string& target, const StagingOptions& options);

  // Throws, before anything is written, if DST exists and may not be
  // replaced (kUnfaithful), its parent is missing or not writable (kIo), or
  // another process works on the same DST (kIo). A staging directory that a
  // dead process left behind is emptied, unless options.resume.
  Staging(const std::string& target, const StagingOptions& options);
  // Removes what was not published.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The directory in which the files are made: TargetFile paths are relative
  // to it. A single file is made in it under DST's base name.
  const std::string& root() const { return root_; }
  const std::string& target() const { return target_; }

  // Throws kIo if the file system has less room.
  void check_space(uint64_t bytes) const;
  // Makes a file of exactly that size, and the directories above it. One that
  // an earlier run left with that size stays as it is.
  void create(const std::string& relative_path, uint64_t size);

  // Removes everything in it: an earlier run's files are of no use.
  void clear();

  // Lets other processes of the same job hold the lock too, each by the object
  // that join_staging() returns; still no other job can take it.
  void share_lock() const;

  // A file of the staging itself, which is not published.
  std::string journal_path() const;

  // Flushes and renames. After it DST is there, whole; nothing is left beside
  // it.
  void publish();

  // Leaves what was written in place when this object ends.
  void keep() { keep_ = true; }

 private:
  void sync_all() const;
  void publish_directory();
  void publish_files();

  StagingOptions options_;
  std::string target_;
  std::string root_;
  int lock_ = -1;
  bool keep_ = false;
  bool published_ = false;
  std::vector<std::string> files_;        // relative
  std::vector<std::string> directories_;  // relative, parents first
};

// A process that writes into another's staging directory: while it lives, no
// later run may begin there. Throws kIo if the directory is not shared.
Handle join_staging(const std::string& root);

}  // namespace ckpt::io
