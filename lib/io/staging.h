// SPDX-License-Identifier: Apache-2.0
// A target under construction: a directory beside DST that becomes DST by one
// rename when it is complete. DST never exists half-done.
//
//   DIR/.NAME.ckpt-lock       see lib/io/lock.h
//   DIR/.NAME.ckpt-staging/   files in their final layout, `journal`, and
//                             `lock` while other processes write there too
//   DIR/.NAME.ckpt-staging.bad/  what a failed flush left, while it is copied
//   DIR/.NAME.ckpt-journal    the journal, for the moment of the rename
//   DIR/.NAME.ckpt-salvage/   what a salvage rebuilds for it first, with a lock
//                             of its own (api/salvage/shadow.h)
//   DIR/NAME                  appears at publish()
//
// A target on another machine (s3:// gs://) is staged here too, in a directory
// of the spool (CKPT_SPOOL, else TMPDIR, else /var/tmp). Its files are sent
// part by part while they are written (lib/io/upload.h), or when publish() is
// called; `upload` in the directory records what was begun.
//
// Whatever has the name of the staging directory was made by ckpt or is
// refused: no symbolic link is followed, there or below.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/staging_target.h"
#include "lib/io/upload.h"

namespace ckpt::io {

class Staging {
 public:
  // Those checks of the constructor that need no writing, for dry runs.
  static void check(const std::string& target, const StagingOptions& options);

  // Throws, before anything is written, if DST exists and may not be replaced
  // (kUnfaithful), its parent is missing or not writable (kIo), another process
  // works on the same DST (kIo), or the staging's name is taken by something
  // that is not a directory (kUnsafe). A staging directory that a dead process
  // left behind is emptied, unless options.resume.
  Staging(const std::string& target, const StagingOptions& options);
  // Removes what was not published.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // The directory in which the files are created: TargetFile paths are relative
  // to it. A single file is created in it under DST's base name.
  const std::string& root() const { return root_; }
  const std::string& target() const { return target_; }

  // The upload if the target is on another machine, else null. All files but
  // the manifest are created before.
  Upload* begin_upload();

  // Throws kIo if the file system has less room.
  void check_space(uint64_t bytes) const;
  // Creates a file of exactly that size, and the directories above it. If it is
  // to `keep` them, the bytes of a file of that size that an earlier run left
  // are in it.
  void create(const std::string& relative_path, uint64_t size,
              bool keep = false);

  // Removes it with everything in it, and makes it anew: an earlier run's files
  // are of no use.
  void clear();

  // A flush of them failed: all files are created anew, in a new directory, and
  // those that are kept are copied, as far as there is room for it, from the
  // old ones, which then go. (Inodes whose blocks the kernel could not write
  // are not written by flushing them again: see lib/io/writeback.h.)
  void renew(const std::function<void()>& create_all);

  // Lets other processes of the same job declare that they write here, each by
  // the object that join_staging() returns. As long as one of these lives no
  // other job can begin, even if this process is dead.
  void share_lock() const;

  // A file of the staging itself, which is not published.
  std::string journal_path() const;

  // Flushes the files; a no-op without options.sync. The journal stays.
  void flush() const;
  // Renames, after flush(). Then DST is there, complete. Throws kUnfaithful,
  // and leaves DST as it is, if something appeared there that may not be
  // replaced.
  void publish();
  // After publish(): the path of what DST replaced, or of the staging itself,
  // if it could not be removed, and why; "" if all is gone.
  const std::string& leftover() const { return leftover_; }
  bool is_published() const { return published_; }
  // The target is on another machine.
  bool is_spool() const { return place_ != target_; }

  // Leaves what was written in place when this object is destroyed.
  void keep() { keep_ = true; }

 private:
  void remove_salvaged() const;
  void open_root();
  bool copy_bad(const std::string& relative_path, uint64_t size) const;
  void make_parents(const std::string& relative_path);
  void remove_strangers() const;
  void sync_directories() const;
  void publish_directory();
  bool is_companion(const std::string& file) const;
  void check_beside() const;
  void publish_beside(const std::string& from, const std::string& to);
  void publish_files();
  void publish_remote();
  std::string upload_record() const;
  void finish();

  StagingOptions options_;
  std::string target_;
  std::string place_;  // the staging is beside it: target_ or in the spool
  std::string root_;
  std::string bad_;    // beside it; while renew() works
  std::string aside_;  // the journal's place during the rename
  TargetLock lock_;
  bool keep_ = false;
  bool published_ = false;
  std::string leftover_;
  std::vector<std::string> files_;        // relative
  std::vector<std::string> directories_;  // relative, parents first
  std::set<std::string> made_;            // the same
  std::unique_ptr<Upload> upload_;
  size_t in_upload_ = 0;  // of files_
};

// A process that writes into another's staging directory: while it lives, no
// later run may begin there. Throws kIo if the directory is not shared.
Handle join_staging(const std::string& root);

}  // namespace ckpt::io
