// SPDX-License-Identifier: Apache-2.0
#include "api/check/stats_of.h"

#include <algorithm>

#include "lib/processors.h"
#include "reshard/numbers/values.h"

namespace ckpt::library {
namespace {

// Threads don't wait for each other at the end of a batch.
constexpr uint64_t kAtATime = 4;

}  // namespace

StatsOf::StatsOf(const Catalog& catalog, uint32_t threads, uint64_t max_mem)
    : catalog_(catalog), stats_(catalog.tensors.size()) {
  uint64_t wanted = 0, largest = 0;
  for (const Tensor& tensor : catalog.tensors) {
    slot_memory_ =
        std::max(slot_memory_, reshard::Tally::memory_of(tensor.shape));
    const uint64_t one = reshard::TensorStats::most_memory(tensor.shape);
    largest = std::max(largest, one);
    wanted += one;
  }
  room_ = std::min(wanted, max_mem / 8);
  const uint64_t most = threads ? threads : processors();
  const uint64_t each = slot_memory_ + kAtATime * largest;
  slots_.resize(std::clamp<uint64_t>(max_mem / 8 / each, 1, most));
}

std::vector<uint32_t> StatsOf::batches() const {
  std::vector<uint32_t> batches;
  uint64_t held = 0;
  uint32_t batch = 0;
  for (const Tensor& tensor : catalog_.tensors) {
    const uint64_t one = reshard::TensorStats::most_memory(tensor.shape);
    if (held != 0 && held + one > room_ / kAtATime) {
      held = 0;
      ++batch;
    }
    held += one;
    batches.push_back(batch);
  }
  return batches;
}

StatsOf::Slot* StatsOf::free_slot(uint32_t tensor) {
  Slot* best = nullptr;
  int best_rank = -1;
  for (Slot& slot : slots_) {
    if (slot.busy) continue;
    const int rank = slot.tensor == tensor                     ? 3
                     : !slot.tensor                            ? 2
                     : slot.last == std::this_thread::get_id() ? 1
                                                               : 0;
    if (rank <= best_rank) continue;
    best = &slot;
    best_rank = rank;
  }
  return best;
}

StatsOf::Slot& StatsOf::take_slot(uint32_t tensor) {
  Slot* slot = nullptr;
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return (slot = free_slot(tensor)) != nullptr; });
    slot->busy = true;
    slot->last = std::this_thread::get_id();
  }
  if (!slot->tally) slot->tally = std::make_unique<reshard::Tally>();
  if (slot->tensor == tensor) return *slot;
  empty(*slot);
  const Tensor& of = catalog_.tensors[tensor];
  slot->tally->begin(of.dtype, of.shape);
  slot->tensor = tensor;
  return *slot;
}

void StatsOf::give_back(Slot& slot) {
  {
    const std::lock_guard lock(mutex_);
    slot.busy = false;
  }
  freed_.notify_one();
}

StatsOf::Begun& StatsOf::begun(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Begun>& found = begun_[tensor];
  if (!found) {
    const Tensor& of = catalog_.tensors[tensor];
    found.reset(new Begun{.mutex = {},
                          .stats = {of.dtype, of.shape},
                          .elements = element_count(of.shape).value_or(0) *
                                      reshard::doubles_of(of.dtype)});
  }
  return *found;
}

void StatsOf::empty(Slot& slot) {
  if (!slot.tensor) return;
  const uint32_t tensor = *slot.tensor;
  Begun& one = begun(tensor);
  bool done = false;
  {
    const std::lock_guard lock(one.mutex);
    one.stats.add(*slot.tally);
    done = one.stats.counted() == one.elements;
    if (done) stats_[tensor] = one.stats.finish();
    const uint64_t now = done ? 0 : one.stats.memory();
    const std::lock_guard all(mutex_);
    used_ += now - one.memory;
    one.memory = now;
    if (!done && used_ > room_) {
      one.stats.forget_counts();
      used_ -= now - one.stats.memory();
      one.memory = one.stats.memory();
      ++without_;
    }
  }
  slot.tensor.reset();
  if (!done) return;
  const std::lock_guard lock(mutex_);
  begun_.erase(tensor);
}

void StatsOf::add(uint32_t tensor, uint64_t offset,
                  std::span<const std::byte> bytes) {
  const DType dtype = catalog_.tensors[tensor].dtype;
  if (!reshard::has_values(dtype) || bytes.empty()) return;
  const uint64_t element = element_size(dtype);
  Slot& slot = take_slot(tensor);
  slot.tally->add(offset / element, bytes.data(), bytes.size() / element);
  if (slot.tally->full()) empty(slot);
  give_back(slot);
}

std::vector<reshard::Stats> StatsOf::take() {
  for (Slot& slot : slots_) empty(slot);
  return std::move(stats_);
}

}  // namespace ckpt::library
