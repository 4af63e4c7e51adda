// SPDX-License-Identifier: Apache-2.0
// Which parts of a plan are done: a file in the staging directory, from which a
// run that was stopped, killed or out of space continues.
//
//   ckpt-journal 2 FINGERPRINT BOOT = CHECK\n
//   ITEM s SLOT DIGEST … t TENSOR DIGEST … c FILE INDEX CRC …
//        l TENSOR OVERFLOWED ZEROED LARGEST … = CHECK\n
//   ! = CHECK\n
//
// One line for each finished item, appended after its last write. CHECK is the
// CRC-32 of the line before it, 8 hexadecimal digits: a torn or flipped line
// does not count. A line of "!" says that a write failed, one of "!!" that a
// flush did. The page cache
// outlives a process, but not the machine or a failed flush, so what a journal
// says is proven from the staged files before it is believed
// (reshard/run/staged.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/layout.h"
#include "lib/hash/digest.h"
#include "lib/io/file.h"
#include "reshard/numbers/cast_loss.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

// A part of a LateCrc: the contribution of bytes that were written.
struct CrcPart {
  uint32_t file = kNone;
  uint32_t index = 0;  // in TargetFile::crcs
  uint32_t value = 0;
};

// What one item produced besides its bytes.
struct Outcome {
  uint32_t item = 0;
  std::vector<std::pair<uint32_t, Digest>> source;  // slot, part of its sum
  std::vector<std::pair<uint32_t, Digest>> target;  // tensor, likewise
  std::vector<CrcPart> crcs;
  std::vector<std::pair<uint32_t, CastLoss>> losses;  // tensor, its part

  void clear() { source.clear(), target.clear(), crcs.clear(), losses.clear(); }
};

class Journal {
 public:
  // Creates a journal, replacing an old one.
  static Journal create(const std::string& path, uint64_t fingerprint);
  // The journal of an earlier run of the same work; nothing if there is none.
  // Throws unfaithful_error if it is for other work (the source or the options
  // changed).
  static std::optional<Journal> open(const std::string& path,
                                     uint64_t fingerprint);

  // The items that an earlier run says it finished, each once.
  const std::vector<Outcome>& done() const { return done_; }
  // True if the machine was restarted since, or a write or a flush failed: the
  // files may not hold what was written to them.
  bool is_doubtful() const { return doubtful_; }
  // True if a flush failed: these inodes are not to be used again.
  bool is_lost() const { return lost_; }
  // Says so to later runs, as durably as such a disk allows.
  enum class Doubt { kWrite, kFlush };
  void doubt(Doubt why = Doubt::kWrite);
  // Forgets all finished items except these; in a new file.
  void replace(std::vector<Outcome> done);
  // Adds a finished item, from any thread. It reaches the file after 50 ms,
  // after 64 KiB of others, or when the journal is destroyed: a plan of a
  // million small items can't pay a system call for each, and a killed run may
  // do some of them again.
  void append(const Outcome& outcome);
  // Items in it, from this run and earlier ones.
  size_t items() const { return items_; }

  Journal(Journal&& other) noexcept
      : file_(std::move(other.file_)),
        header_(std::move(other.header_)),
        doubtful_(other.doubtful_),
        lost_(other.lost_),
        end_(other.end_),
        items_(other.items_),
        done_(std::move(other.done_)),
        waiting_(std::move(other.waiting_)),
        flushed_(other.flushed_) {}
  ~Journal();

 private:
  Journal(io::Handle file, std::string header)
      : file_(std::move(file)), header_(std::move(header)) {}
  void read_lines(std::string_view text, size_t first);
  void flush();
  io::Handle file_;
  std::string header_;
  bool doubtful_ = false;
  bool lost_ = false;
  uint64_t end_ = 0;  // of the last whole line
  size_t items_ = 0;
  std::vector<Outcome> done_;
  std::string waiting_;  // lines that are not on file yet
  std::chrono::steady_clock::time_point flushed_;
  std::mutex mutex_;
};

// Identifies the work: the plan, the target's files, and the source's files
// as they are on disk (size, times of change, which file it is).
uint64_t fingerprint(const Plan& plan, const Catalog& source,
                     const Target& target);

}  // namespace ckpt::reshard
