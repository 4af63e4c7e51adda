// SPDX-License-Identifier: Apache-2.0
// Statistics of all tensors of a catalog, of bytes that come in any order and
// from many threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/numbers/stats.h"
#include "reshard/numbers/tally.h"

namespace ckpt::library {

class StatsOf {
 public:
  // Uses memory() bytes; `max_mem` is what the whole run has.
  StatsOf(const Catalog& catalog, uint32_t threads, uint64_t max_mem);
  uint64_t memory() const { return slots_.size() * slot_memory_ + room_; }
  // No more than these may add, or too many tensors are begun at once.
  uint32_t threads() const { return static_cast<uint32_t>(slots_.size()); }

  // Which tensors to read before which: all those of one number, whose counters
  // are small enough to be there together, before those of the next. A file at
  // a time would begin all that is cut over files before it ends one.
  std::vector<uint32_t> batches() const;

  void add(uint32_t tensor, uint64_t offset, std::span<const std::byte> bytes);
  // When all has been added.
  std::vector<reshard::Stats> take();
  // Tensors without quantiles: their counters did not fit.
  uint64_t without_quantiles() const { return without_; }

 private:
  // What a thread counts in. It keeps its tensor until it is needed for another
  // one: tables are joined seldom.
  struct Slot {
    std::optional<uint32_t> tensor;
    std::thread::id last;
    bool busy = false;
    std::unique_ptr<reshard::Tally> tally;
  };
  // A tensor that was begun.
  struct Begun {
    std::mutex mutex;
    reshard::TensorStats stats;
    uint64_t elements;
    uint64_t memory = 0;
  };

  Slot& take_slot(uint32_t tensor);
  Slot* free_slot(uint32_t tensor);
  void give_back(Slot& slot);
  // Adds what the slot has to its tensor.
  void empty(Slot& slot);
  Begun& begun(uint32_t tensor);

  const Catalog& catalog_;
  std::vector<reshard::Stats> stats_;
  uint64_t slot_memory_ = reshard::Tally::kMemory;
  uint64_t room_ = 0;  // for tensors that were begun
  uint64_t used_ = 0;  // of it
  uint64_t without_ = 0;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<Slot> slots_;
  std::unordered_map<uint32_t, std::unique_ptr<Begun>> begun_;
};

}  // namespace ckpt::library
