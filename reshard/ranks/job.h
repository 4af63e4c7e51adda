// SPDX-License-Identifier: Apache-2.0
// A job of several processes: rank 0 decides, the others do what it sends.
//
//   rank 0    command ── plan ── tasks ─┬─ own part ── sums ── publish ── end
//                                       │    ▲ progress, results, failures
//   rank 1…   serve ────────────────────┴─ task ── serve … ───────────── end
//
// There is no collective operation: rank 0 sends and waits for what comes, and
// every wait ends when something fails. So a failing rank stops the others with
// its own error, and no rank is left waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/progress.h"
#include "reshard/ranks/exchange.h"
#include "reshard/ranks/link.h"
#include "reshard/run/journal.h"

namespace ckpt::ranks {

// What a rank has done so far.
struct Account {
  std::string host;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_sent = 0;  // payload, to other ranks
  uint64_t bytes_received = 0;
  uint64_t messages = 0;    // of payload, sent
  uint64_t rounds = 0;      // between GPUs, in which it took part
  uint64_t task_bytes = 0;  // of the tasks sent to it
  double seconds = 0;       // of work
};

// Rank 0's side.
class Job {
 public:
  // Waits for the others to report in.
  explicit Job(std::shared_ptr<Link> link);

  uint32_t size() const { return link_->size(); }
  std::vector<Account>& accounts() { return accounts_; }
  // Ranks on the machine of `rank`, itself included.
  uint32_t neighbours(uint32_t rank) const;
  // By rank: true if it is on another machine than `rank`.
  std::vector<uint8_t> away_from(uint32_t rank) const;
  // The next number of an exchange, from 1 on.
  uint32_t next_round() { return ++rounds_; }

  // Has each rank perform make(rank) and returns the results by rank. The first
  // failure stops all and is thrown, naming the rank. `journal`: see perform().
  std::vector<std::string> run(const std::function<std::string(uint32_t)>& make,
                               const Progress& progress,
                               reshard::Journal* journal);

  // Dismisses the others with this exit status. If one of them did not answer
  // after a failure, ends them and this process.
  void finish(int status);

 private:
  std::string name_of(uint32_t rank) const;
  std::shared_ptr<Link> link_;
  std::vector<Account> accounts_;
  Exchange exchange_;
  uint32_t rounds_ = 0;
  bool broken_ = false;  // a rank does not answer
};

// The others' side: performs tasks until rank 0 says that the job is over.
// Returns the exit status.
int serve(Link& link);

// The job that this process is rank 0 of; null if it works alone.
Job* current();
void set_current(Job* job);

// What --exchange asks for:
//           each byte is read by   each file is written by
//   kAuto   one rank               all that have bytes of it
//   kRead   all that need it       one rank
//   kSend   one rank               one rank: payload goes in messages
enum class Mode : uint8_t { kAuto, kRead, kSend };
struct Sharing {
  Mode mode = Mode::kAuto;
  uint64_t buffer = 0;  // of a kSend message; 0: see exchange_buffer()
};
Sharing sharing();
void set_sharing(const Sharing& sharing);
// Bytes that each rank's messages take out of that much memory; 0 if nothing is
// sent.
uint64_t exchange_memory(uint64_t max_mem);

}  // namespace ckpt::ranks
