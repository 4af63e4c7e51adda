// SPDX-License-Identifier: Apache-2.0
// Work in byte-sized pieces, handed to threads so that a thread stays with
// one source file while there is another for the next thread, and two threads
// seldom write to one file.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "reshard/plan/plan.h"

namespace ckpt::reshard {

// A part of a job: rows [begin, end), or of a job of one row, columns
// [begin, end) of its source lane; of a gather all of it.
struct Item {
  uint32_t index = 0;  // in Plan::jobs or Plan::gathers
  bool gather = false;
  uint64_t begin = 0;
  uint64_t end = 0;
  // Counted over all items of the plan; kNone: a part of one, which no journal
  // knows.
  uint32_t number = 0;

  bool operator==(const Item&) const = default;
};

// Payload of one item: large enough that handing it out costs nothing, small
// enough that threads end together. Journals count items, so that it is a part
// of what they mean.
inline constexpr uint64_t kItemBytes = 16 << 20;

// All items of a plan, about `bytes` of payload each, in the order of jobs.
std::vector<Item> cut_items(const Plan& plan, uint64_t bytes);

// Hands items out. Items of one source file make a group; a thread takes its
// own group from the front and, when all groups are taken, helps another
// from the back. Of groups it takes the first that goes to another target file
// than those that other threads write (of an item the first one counts): ext4
// lets one thread write to a file at a time.
class WorkQueue {
 public:
  WorkQueue(const Plan& plan, std::vector<Item> items, uint32_t threads);
  // The next item for a thread. Nothing when all is handed out or after stop().
  // Of its group's first items it is the first one that is `ready`, if one is.
  using Ready = std::function<bool(const Item&)>;
  std::optional<Item> next(uint32_t thread, const Ready& ready = {});
  // What next(thread) will probably give, up to `most` items: the rest of its
  // group, then the group that it would begin with and those that nobody has
  // begun, or else the back of the one that it would help.
  std::vector<Item> peek(uint32_t thread, size_t most);
  void stop() { stopped_ = true; }
  // What nobody took.
  std::vector<Item> rest();

 private:
  struct Group {
    size_t begin = 0;
    size_t end = 0;
    bool taken = false;
  };
  struct Thread {
    uint32_t group = kNone;
    uint32_t target = kNone;  // file that it writes
  };
  bool is_written(uint32_t target, uint32_t but_by) const;
  // The group that has most left; their number if nothing is left.
  size_t longest_group() const;
  // The group to begin with; kNone if all are taken.
  uint32_t untaken_group(uint32_t thread);
  Item take_first(Group& group, const Ready& ready);

  const Plan& plan_;
  std::vector<Item> items_;
  std::vector<Group> groups_;
  std::vector<Thread> threads_;
  size_t next_group_ = 0;  // all before it are taken
  std::mutex mutex_;
  std::atomic<bool> stopped_ = false;
};

// Runs `work(thread)` on that many threads and rethrows the first error.
// `stop` is called once when a thread fails, to end the others soon.
void run_threads(uint32_t threads, const std::function<void(uint32_t)>& work,
                 const std::function<void()>& stop);

}  // namespace ckpt::reshard
