// What carries messages between the processes ("ranks") of a job. An interface
// so that a job runs over MPI, over threads in tests, and one day over
// something else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::ranks {

enum class Tag : int32_t {
  kHello,     // rank -> 0: its host
  kTask,      // 0 -> rank: do this
  kProgress,  // rank -> 0: bytes that were read since the last one
  kDone,      // rank -> 0: what came of the task
  kStop,      // 0 -> rank: give up the task, if you still have it
  kEnd,       // 0 -> rank: the exit status
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

  // Messages from one rank to another arrive in their order.
  virtual void send(uint32_t to, Tag tag, std::string_view bytes) = 0;
  // The next message that has arrived; never waits.
  virtual std::optional<Message> poll() = 0;
  // Leaves the job in peace: waits until all ranks are here.
  virtual void finish() = 0;
  // Ends all processes of the job, this one too, with this exit status.
  virtual void abort(int status) = 0;
};

// The job that a launcher (mpirun, srun …) started this process in: opens the
// module "mpi" and joins. Null if there is no launcher, or it started only one
// process; then no module is looked for. Throws a resource_error if there is
// one and the module is missing or is of another MPI than the launcher.
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
