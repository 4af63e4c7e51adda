// SPDX-License-Identifier: Apache-2.0
// Messages that arrive at a rank in an exchange (exchange.h), and the thread
// that writes their content.
//
//   free ─► granted ─► arrived ─► free ┄┄► (flushed) ┄┄► kWritten is said
//     the thread that talks │  writer
//
// Asks wait in a queue, which holds a few words for each. A free slot is
// granted to one of them, so memory does not grow with the number of ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "reshard/ranks/bell.h"
#include "reshard/ranks/link.h"
#include "reshard/ranks/note.h"
#include "reshard/ranks/wire.h"

namespace ckpt::ranks {

class Inbox {
 public:
  struct OwnFile {
    std::string path;  // "": another rank writes it
    uint64_t size = 0;
  };
  struct Setup {
    uint32_t round = 0;
    std::span<std::byte> memory;  // for all slots
    std::vector<OwnFile> files;   // the target's, by number
    // Ranks on other machines. What they sent is flushed before they are told
    // that it is written: their journals outlive a crash of this machine.
    std::vector<bool> away;
    bool sync = false;    // else no rank on another machine keeps a journal
    bool behind = false;  // leave nothing in the page cache
    std::function<void()> on_failure;
  };

  explicit Inbox(Bell& bell) : bell_(bell) {}
  ~Inbox() { end(); }

  void begin();
  void stop();

  // The task's side.
  void open(Setup setup);
  // Ends the writer. Rethrows its exception.
  void close();
  // The same, without throwing.
  void end();
  std::exception_ptr failure() const;
  uint64_t bytes() const { return bytes_; }

  // The talking thread's side.
  void asked(uint32_t from, const Note& note);
  // `wire` may be null when nothing is in progress.
  void pump(Link& link, Wire* wire);
  bool quiet() const { return granted_.empty(); }

  static constexpr uint32_t kSlots = 4;

 private:
  struct Ask {
    uint32_t from = 0;
    Note note;
  };
  struct Slot {
    std::span<std::byte> memory;
    bool free = true;
    Ask ask;
    uint64_t bytes = 0;
  };
  struct Granted {
    uint32_t slot = 0;
    Wire::Ticket ticket = 0;
  };
  class Files;

  void write_all();
  void write(Files& files, uint32_t slot);
  void flush(Files& files);
  void arrived(uint32_t slot, uint64_t bytes);
  void grant(Link& link, Wire& wire);

  Bell& bell_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  Setup setup_;
  bool open_ = false;
  bool stopped_ = false;
  bool ending_ = false;
  std::deque<Ask> asks_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> arrived_;
  std::vector<Ask> unflushed_;  // only for the writer
  std::vector<Ask> written_;    // to be reported
  std::exception_ptr failure_;
  std::atomic<uint64_t> bytes_ = 0;  // of payload
  std::thread writer_;
  std::vector<Granted> granted_;  // only for the talking thread
};

}  // namespace ckpt::ranks
