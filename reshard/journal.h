// Which parts of a plan are done: a file in the staging directory, so that a
// run which was stopped, killed or out of space goes on where it was.
//
//   ckpt-journal 1 FINGERPRINT BOOT\n
//   ITEM s SLOT DIGEST … t TENSOR DIGEST … c FILE INDEX CRC … .\n
//
// One line for each finished item, appended after its last write. A line
// that lacks its full stop was torn by the end of the process and does not
// count. The page cache outlives a process but not the machine, so a journal
// of another boot is not believed.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/layout.h"
#include "lib/digest.h"
#include "lib/io/file.h"
#include "reshard/plan.h"

namespace ckpt::reshard {

// A part of a LateCrc: the contribution of bytes that were written.
struct CrcPart {
  uint32_t file = kNone;
  uint32_t index = 0;  // in TargetFile::crcs
  uint32_t value = 0;
};

// What one item gave besides its bytes.
struct Outcome {
  uint32_t item = 0;
  std::vector<std::pair<uint32_t, Digest>> source;  // slot, part of its sum
  std::vector<std::pair<uint32_t, Digest>> target;  // tensor, likewise
  std::vector<CrcPart> crcs;

  void clear() { source.clear(), target.clear(), crcs.clear(); }
};

class Journal {
 public:
  // A new journal; replaces what is there.
  static Journal create(const std::string& path, uint64_t fingerprint);
  // The journal of an earlier run of the same work. Nothing if there is none
  // or the machine was restarted since; throws unfaithful_error if it is of
  // other work (the source or the options changed).
  static std::optional<Journal> open(const std::string& path,
                                     uint64_t fingerprint);

  // What an earlier run finished.
  const std::vector<Outcome>& done() const { return done_; }
  // Adds a finished item; from any thread. It is on file after 50 ms or 64 KiB
  // of others, or when the journal goes: a plan of a million small items must
  // not pay a system call for each, and a killed run may do some of them again.
  void append(const Outcome& outcome);
  // Items in it, of this run and of earlier ones.
  size_t items() const { return items_; }

  Journal(Journal&& other) noexcept
      : file_(std::move(other.file_)),
        end_(other.end_),
        items_(other.items_),
        done_(std::move(other.done_)),
        waiting_(std::move(other.waiting_)),
        flushed_(other.flushed_) {}
  ~Journal();

 private:
  explicit Journal(io::Handle file) : file_(std::move(file)) {}
  void flush();
  io::Handle file_;
  uint64_t end_ = 0;  // of the last whole line
  size_t items_ = 0;
  std::vector<Outcome> done_;
  std::string waiting_;  // lines that are not on file yet
  std::chrono::steady_clock::time_point flushed_;
  std::mutex mutex_;
};

// Identifies the work: the plan, the target's files, and the source's files
// as they are on disk (size and time of change).
uint64_t fingerprint(const Plan& plan, const Catalog& source,
                     const Target& target);

}  // namespace ckpt::reshard
