// SPDX-License-Identifier: Apache-2.0
// What `ckpt fetch` has of each file, however it ended. Append-only lines in
// DIR/.ckpt-fetch/journal:
//
//   came BEGIN END SUM TAG NAME    bytes of that version, in NAME.part or DIR
//
// SUM is the digest of those bytes at their place (lib/hash/digest.h). What a
// disk, a lost power supply or another program made of them meanwhile does not
// have it, and is fetched again: nothing is believed that can be looked at.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lib/hash/digest.h"
#include "lib/io/file.h"

namespace ckpt::library {

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
  struct Part {
    uint64_t begin = 0;
    uint64_t end = 0;
    Digest sum;
  };

  // Reads what earlier runs wrote.
  explicit FetchJournal(const std::string& path);

  // True if there is nothing of any file.
  bool is_empty() const { return known_.empty() && begins_ == end_; }
  // What earlier runs had of that version of the file.
  std::vector<Part> known(const std::string& name,
                          const std::string& tag) const;
  // For all threads.
  void came(const std::string& name, const std::string& tag, const Part& part);
  void sync() const { file_.sync(); }

 private:
  struct Known {
    std::string tag;
    std::vector<Part> parts;
  };

  void read(const std::string& text);

  std::map<std::string, Known> known_;
  io::Handle file_;
  std::mutex mutex_;
  uint64_t end_ = 0;
  uint64_t begins_ = 0;  // where this run's lines do
};

// The digest of [begin, end) of a file.
Digest digest_of(const io::Handle& file, uint64_t begin, uint64_t end);
// Those parts that a file still has.
Ranges proven(const io::Handle& file,
              const std::vector<FetchJournal::Part>& parts);

}  // namespace ckpt::library
