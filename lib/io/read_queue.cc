// SPDX-License-Identifier: Apache-2.0
#include "lib/io/read_queue.h"

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/io/ring.h"

namespace ckpt::io {
namespace {

constexpr uint64_t kAlign = DirectFile::kMostAlign;

uint64_t down(uint64_t at) { return at / kAlign * kAlign; }
uint64_t up(uint64_t at) { return down(at + kAlign - 1); }

// A range plus what is before and after it in its aligned blocks.
uint64_t slot_bytes(uint64_t bytes) { return up(bytes) + kAlign; }

// Copies bytes [offset, …) out of `got`, which was read from down(offset) on.
void copy_or_throw(const DirectFile& file, uint64_t offset,
                   std::span<const std::byte> got,
                   std::span<std::byte> buffer) {
  const uint64_t skip = offset - down(offset);
  if (got.size() < skip + buffer.size())
    throw input_error(
        {file.path(), {}}, "file ends at byte {}, wanted bytes {}-{}",
        down(offset) + got.size(), offset, offset + buffer.size());
  std::memcpy(buffer.data(), got.data() + skip, buffer.size());
}

}  // namespace

ReadQueue::ReadQueue(uint32_t ahead, uint64_t bytes)
    : ahead_(ahead),
      bytes_(bytes),
      buffer_(memory(ahead, bytes)),
      slots_(ahead) {
  if (ahead == 0) return;
  int errnum = 0;
  ring_ = Ring::make(ahead, errnum);
  if (!ring_)
    throw resource_error({}, "io_uring cannot be used here: {}",
                         std::strerror(errnum))
        .with_hint("use --io direct, or --io buffered");
}

ReadQueue::~ReadQueue() {
  try {
    clear();
  } catch (const std::exception&) {
    // The kernel holds on to memory that it still writes to.
  }
}

bool ReadQueue::has_ring() {
  int errnum = 0;
  static const bool has = Ring::make(1, errnum) != nullptr;
  return has;
}

uint64_t ReadQueue::memory(uint32_t ahead, uint64_t bytes) {
  return (ahead + 1) * slot_bytes(bytes);
}

std::span<std::byte> ReadQueue::slot_memory(uint32_t slot) const {
  const uint64_t size = slot_bytes(bytes_);
  return {buffer_.data() + slot * size, size};
}

void ReadQueue::want(const File& file, uint64_t offset, uint64_t bytes) {
  if (ahead_ == 0 || bytes == 0 || bytes > bytes_) return;
  wanted_.push_back({file, offset, bytes, 0});
  start_some();
}

void ReadQueue::start_some() {
  for (; started_ < std::min<size_t>(wanted_.size(), ahead_); ++started_) {
    Wanted& wanted = wanted_[started_];
    wanted.slot = next_slot_;
    const uint64_t begin = down(wanted.offset);
    ring_->read(wanted.file->fd(), begin,
                slot_memory(wanted.slot)
                    .first(up(wanted.offset + wanted.bytes) - begin),
                wanted.slot);
    slots_[wanted.slot].busy = true;
    next_slot_ = (next_slot_ + 1) % ahead_;
  }
}

void ReadQueue::settle(uint32_t slot) {
  while (slots_[slot].busy) {
    const Ring::Done done = ring_->wait();
    slots_[done.tag] = {.busy = false, .result = done.result};
  }
}

void ReadQueue::drop_first() {
  if (started_ != 0) {
    settle(wanted_.front().slot);
    --started_;
  }
  wanted_.pop_front();
}

void ReadQueue::clear() {
  while (!wanted_.empty()) drop_first();
}

bool ReadQueue::take(const File& file, uint64_t offset,
                     std::span<std::byte> buffer) {
  const auto found = std::ranges::find_if(wanted_, [&](const Wanted& wanted) {
    return wanted.file == file && wanted.offset == offset &&
           wanted.bytes == buffer.size();
  });
  if (found == wanted_.end()) return false;
  for (auto passed = found - wanted_.begin(); passed > 0; --passed)
    drop_first();
  start_some();
  empty(wanted_.front(), buffer);
  drop_first();
  start_some();
  return true;
}

// A read that failed, or ended early though the file continues, is repeated as
// an ordinary one, which reports what is wrong.
void ReadQueue::empty(const Wanted& wanted, std::span<std::byte> buffer) {
  settle(wanted.slot);
  const uint64_t begin = down(wanted.offset);
  const auto whole =
      slot_memory(wanted.slot).first(up(wanted.offset + wanted.bytes) - begin);
  const int result = slots_[wanted.slot].result;
  uint64_t got = result > 0 ? static_cast<uint64_t>(result) : 0;
  if (got < wanted.offset - begin + wanted.bytes) {
    got = down(got);
    got += wanted.file->read(begin + got, whole.subspan(got));
  }
  copy_or_throw(*wanted.file, wanted.offset, whole.first(got), buffer);
}

void ReadQueue::read(const DirectFile& file, uint64_t offset,
                     std::span<std::byte> buffer) {
  const auto slot = slot_memory(ahead_);
  while (!buffer.empty()) {
    const uint64_t begin = down(offset);
    const uint64_t most = std::min<uint64_t>(buffer.size(), bytes_);
    const auto whole = slot.first(up(offset + most) - begin);
    const uint64_t got = file.read(begin, whole);
    copy_or_throw(file, offset, whole.first(got), buffer.first(most));
    offset += most;
    buffer = buffer.subspan(most);
  }
}

}  // namespace ckpt::io
