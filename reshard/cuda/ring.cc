// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ring.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace ckpt::cuda {
namespace {

constexpr uint64_t kMargin = 256;  // before and after each device buffer
constexpr uint64_t kLeastRoom = 16 << 10;

uint64_t round_up(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Ring::Ring(uint32_t device, uint32_t slots, uint64_t bytes)
    : device_(device), bytes_(bytes), pitch_(round_up(bytes) + kMargin) {
  use_device(device_);
  slots_.resize(slots);
  try {
    for (Slot& slot : slots_) {
      slot.stream = make_stream();
      slot.in = pin(round_up(bytes));
      slot.out = pin(round_up(bytes));
      slot.device = allocate(3 * pitch_ + kMargin);
      make_room(slot, kLeastRoom, kLeastRoom);
    }
    table_ = allocate(sizeof(DigestTable));
    const DigestTable table = make_table();
    upload(table_, reinterpret_cast<const std::byte*>(&table), sizeof table,
           slots_.at(0).stream);
    cuda::wait(slots_[0].stream);
  } catch (...) {
    close();
    throw;
  }
}

Ring::~Ring() { close(); }

void Ring::close() noexcept {
  try {
    use_device(device_);
    for (const Slot& slot : slots_)
      if (slot.stream) cuda::wait(slot.stream);
  } catch (const std::exception&) {  // the failure was reported, or is moot
  }
  for (const Slot& slot : slots_) {
    if (slot.stream) drop_stream(slot.stream);
    for (std::byte* at : {slot.in, slot.out, slot.tasks, slot.sums})
      if (at) unpin(at);
    for (std::byte* at : {slot.device, slot.device_tasks})
      if (at) release(at);
  }
  if (table_) release(table_);
}

void Ring::make_room(Slot& slot, uint64_t task_bytes, uint64_t sum_bytes) {
  if (task_bytes <= slot.task_room && sum_bytes <= slot.sum_room) return;
  // None of the slot's work is in progress: it was waited for.
  if (slot.tasks) unpin(slot.tasks);
  if (slot.sums) unpin(slot.sums);
  if (slot.device_tasks) release(slot.device_tasks);
  slot.tasks = slot.sums = slot.device_tasks = nullptr;
  slot.task_room = round_up(std::max(task_bytes, 2 * slot.task_room));
  slot.sum_room = round_up(std::max(sum_bytes, 2 * slot.sum_room));
  slot.tasks = pin(slot.task_room);
  slot.sums = pin(slot.sum_room);
  slot.device_tasks = allocate(slot.task_room + slot.sum_room);
}

void Ring::check(const CkptCudaWork& work) const {
  if (work.in_bytes > bytes_ || work.out_bytes > bytes_)
    throw std::invalid_argument("a block that is larger than its buffers");
}

void Ring::submit(uint32_t index, const CkptCudaWork& work) {
  check(work);
  use_device(device_);
  Slot& slot = slots_.at(index);
  const Batch batch = make_batch(work);
  const uint64_t sum_bytes = work.digest_count * sizeof(DigestSum);
  make_room(slot, batch.blob.size(), sum_bytes);
  slot.sum_count = work.digest_count;

  std::byte* const first = slot.device + kMargin;
  const Buffers buffers{first, first + pitch_, first + 2 * pitch_};
  std::byte* const sums = slot.device_tasks + slot.task_room;
  if (work.in_bytes) upload(buffers.in, slot.in, work.in_bytes, slot.stream);
  if (!batch.blob.empty()) {
    std::memcpy(slot.tasks, batch.blob.data(), batch.blob.size());
    upload(slot.device_tasks, slot.tasks, batch.blob.size(), slot.stream);
  }
  if (sum_bytes) zero(sums, sum_bytes, slot.stream);
  for (const Launch& one : batch.launches)
    launch(one, slot.device_tasks, buffers,
           reinterpret_cast<const DigestTable*>(table_),
           reinterpret_cast<DigestSum*>(sums), slot.stream);
  if (work.out_bytes)
    download(slot.out, buffers.out, work.out_bytes, slot.stream);
  if (sum_bytes) download(slot.sums, sums, sum_bytes, slot.stream);
}

void Ring::wait(uint32_t index, CkptCudaSum* sums) {
  use_device(device_);
  Slot& slot = slots_.at(index);
  cuda::wait(slot.stream);
  static_assert(sizeof(CkptCudaSum) == sizeof(DigestSum));
  if (slot.sum_count)
    std::memcpy(sums, slot.sums, slot.sum_count * sizeof(CkptCudaSum));
}

}  // namespace ckpt::cuda
