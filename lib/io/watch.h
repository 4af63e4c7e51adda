// SPDX-License-Identifier: Apache-2.0
// Detects changes of what was read. From begin() on, each file that
// Handle::open_read opens is remembered as it was then: size, times, inode,
// device. A source that is rewritten while it is copied gives a mixture of
// both, which no later check could tell from the truth.
//
// Each run has one, in its session: a list for the process would be cleared by
// whichever run ends first, and would blame each for the other's files.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::io {

// Used by all threads of its session.
class Watch {
 public:
  Watch() = default;
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin() { on_ = true; }
  // Forgets everything.
  void end();

  // Remembers files that are not open yet.
  void add(const std::vector<std::string>& paths);
  // Files below are being written: never remembered.
  void ignore_below(const std::string& directory);

  // Checks all of them again. The error (kIo) names the first that was replaced
  // or changed; nullopt if none was, or none can be shown to be.
  std::optional<Error> find_change();
  // The same of files on this machine. Before a run that is enough: each reply
  // of a server is compared with the first one, and to ask would be a round
  // trip.
  std::optional<Error> find_change_here();
  // The same; throws if a server does not say. Before a result is given that
  // would be a mixture.
  void check_unchanged();

  // For Handle::open_read. Throws what find_change() returns if the path was
  // remembered as a different file.
  void opened(const std::string& path, const struct stat& facts);

 private:
  struct Facts {
    dev_t device;
    ino_t inode;
    off_t size;
    timespec modified;
    timespec changed;
  };
  static Facts facts_of(const struct stat& facts);
  static std::string difference(const Facts& then, const Facts& now);
  bool is_ignored(const std::string& path) const;
  template <class Look>
  std::optional<Error> find_change_by(const Look& look_at, bool here = false);

  std::atomic<bool> on_ = false;
  std::mutex mutex_;
  std::unordered_map<std::string, Facts> files_;
  std::vector<std::string> ignored_;
};

}  // namespace ckpt::io
