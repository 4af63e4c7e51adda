// SPDX-License-Identifier: Apache-2.0
// What carries messages between the processes ("ranks") of a job. An interface,
// so that a job can run over MPI, over threads in tests, and one day over
// something else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ckpt::ranks {

enum class Tag : int32_t {
  kHello,     // rank -> 0: its host
  kTask,      // 0 -> rank: do this
  kProgress,  // rank -> 0: bytes read since the last one
  kDone,      // rank -> 0: the task's result
  kStop,      // 0 -> rank: give up the task, if you still have it
  kEnd,       // 0 -> rank: the exit status
  kFailed,    // rank -> 0: why; kDone follows when nothing is in progress
  kBeat,      // both ways, during a task: I am alive
  // For an exchange of payload (exchange.h):
  kAsk,      // may I send a message?
  kGrant,    // yes, on this channel
  kJoin,     // it comes in this round (if payload goes in rounds)
  kWritten,  // it is in its file
  kDrained,  // rank -> 0: all that I sent is written
  kClose,    // 0 -> rank: the same is true of all ranks
};

struct Message {
  uint32_t from = 0;
  Tag tag = Tag::kEnd;
  std::string bytes;
};

// All functions are called from one thread of the process. They throw a
// resource_error if the messages can't be carried.
class Link {
 public:
  virtual ~Link() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  virtual std::string host() const = 0;

  // Messages from one rank to another arrive in order.
  virtual void send(uint32_t to, Tag tag, std::string_view bytes) = 0;
  // The same for at most kMostPosted bytes, but never waits.
  virtual void post(uint32_t to, Tag tag, std::string_view bytes) = 0;
  static constexpr size_t kMostPosted = 1024;
  // The next message that has arrived; never waits.
  virtual std::optional<Message> poll() = 0;

  // Payload, on a channel (0 to 1023) that both sides know: the receiver calls
  // take() before it lets the sender give(). Neither waits; the bytes belong to
  // the link until done() has said how many there were.
  using Ticket = uint64_t;
  virtual Ticket give(uint32_t to, uint32_t channel,
                      std::span<const std::byte> bytes) = 0;
  virtual Ticket take(uint32_t from, uint32_t channel,
                      std::span<std::byte> room) = 0;
  // Nothing while it is in progress. A ticket is invalid once it is done.
  virtual std::optional<uint64_t> done(Ticket ticket) = 0;

  // Leaves the job properly: waits until all ranks are here.
  virtual void finish() = 0;
  // Ends all processes of the job, including this one, with this exit status.
  virtual void abort(int status) = 0;
};

// The job that a launcher (mpirun, srun …) started this process in: opens the
// module "mpi" and joins. Null, without looking for a module, if there is no
// launcher or it started only one process. Throws a resource_error if there is
// one but the module is missing or is of another MPI than the launcher.
std::unique_ptr<Link> join_job();

// What the environment says about a launcher, without joining: how many
// processes it started and which this is; 1 and 0 without one.
struct Launch {
  uint32_t size = 1;
  uint32_t rank = 0;
  std::string by;  // the variable that says so
};
Launch find_launch();

}  // namespace ckpt::ranks
