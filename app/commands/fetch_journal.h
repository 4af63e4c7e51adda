// SPDX-License-Identifier: Apache-2.0
// What `ckpt fetch` has of each file, however it ended. Append-only lines in
// DIR/.ckpt-fetch/journal:
//
//   run BOOT synced|quick      what follows was written by one run
//   came BEGIN END TAG NAME    bytes of that version stand in NAME.part
//   kept BEGIN END TAG NAME    the disk has those, too
//   whole TAG NAME             all of it; the next step gives it its name
//
// Written pages outlive the process but not the machine. So after a reboot only
// `kept` counts, and `whole` if the run waited for the disk.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "lib/io/file.h"

namespace ckpt::app {

// A name in one folder and on one line, whatever folders the file is in.
std::string flat_name(const std::string& path);

// Bytes [begin, end), joined where they touch.
class Ranges {
 public:
  void add(uint64_t begin, uint64_t end);
  // How many of the first bytes there are.
  uint64_t prefix() const;
  uint64_t bytes() const;
  // What is missing of [0, size).
  Ranges missing(uint64_t size) const;
  bool empty() const { return by_begin_.empty(); }
  auto begin() const { return by_begin_.begin(); }
  auto end() const { return by_begin_.end(); }

 private:
  std::map<uint64_t, uint64_t> by_begin_;
};

class FetchJournal {
 public:
  struct Known {
    std::string tag;
    Ranges came;
    bool whole = false;
  };

  // Reads what earlier runs wrote.
  FetchJournal(const std::string& path, bool sync);

  // True if there is nothing of any file.
  bool is_empty() const { return known_.empty() && begins_ == end_; }
  // What there is of that version of the file; nothing of any other version.
  Known known(const std::string& name, const std::string& tag) const;
  // For all threads.
  void came(const std::string& name, const std::string& tag, uint64_t begin,
            uint64_t end);
  void kept(const std::string& name, const std::string& tag, uint64_t begin,
            uint64_t end);
  // Waits for the disk, if the run does.
  void whole(const std::string& name, const std::string& tag);

 private:
  void read(const std::string& text);
  uint64_t add(const std::string& line);

  const bool sync_;
  std::map<std::string, Known> known_;
  io::Handle file_;
  std::mutex mutex_;
  uint64_t end_ = 0;
  uint64_t begins_ = 0;  // where this run's lines about files do
  std::mutex sync_mutex_;
  uint64_t synced_ = 0;
};

}  // namespace ckpt::app
