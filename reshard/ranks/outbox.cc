// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/outbox.h"

#include <algorithm>
#include <cstring>

#include "lib/interrupt.h"
#include "lib/trace.h"
#include "reshard/ranks/control.h"

namespace ckpt::ranks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLeastSlots = 8;
constexpr uint64_t kLeastSlot = 64 << 10;
// After this long, a message is sent even if it is not full: journals wait for
// it.
constexpr auto kOldest = std::chrono::milliseconds(100);
constexpr auto kLook = std::chrono::milliseconds(100);  // to check for signals

// Copies from parts, starting where the last copy ended.
class Cursor {
 public:
  explicit Cursor(std::span<const iovec> parts) : parts_(parts) {}
  void copy(std::span<std::byte> to) {
    while (!to.empty()) {
      const iovec& part = parts_.front();
      const uint64_t n = std::min<uint64_t>(to.size(), part.iov_len - at_);
      std::memcpy(to.data(), static_cast<const std::byte*>(part.iov_base) + at_,
                  n);
      to = to.subspan(n);
      at_ += n;
      if (at_ == part.iov_len) parts_ = parts_.subspan(1), at_ = 0;
    }
  }

 private:
  std::span<const iovec> parts_;
  uint64_t at_ = 0;
};

}  // namespace

void Outbox::begin() {
  const std::lock_guard lock(mutex_);
  stopped_ = false;
  slots_.clear();
  unwritten_.clear();
  actions_.clear();
}

void Outbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

void Outbox::open(uint32_t round, std::span<std::byte> memory,
                  uint32_t destinations) {
  const std::lock_guard lock(mutex_);
  round_ = round;
  const size_t most = std::max<size_t>(kLeastSlots, memory.size() / kLeastSlot);
  const size_t count =
      std::clamp<size_t>(size_t{destinations} + 4, kLeastSlots, most);
  const size_t bytes = memory.size() / count / kSlotAlign * kSlotAlign;
  slots_ = std::vector<Slot>(count);
  for (Slot& slot : slots_) {
    slot.chunk = Chunk(memory.first(bytes));
    memory = memory.subspan(bytes);
  }
  bytes_ = messages_ = 0;
}

void Outbox::close() {
  const std::lock_guard lock(mutex_);
  slots_.clear();
}

void Outbox::check() const {
  if (interrupted()) throw Interrupted("");
  if (stopped_) throw Stopped{};
}

Outbox::Slot* Outbox::find(State state, uint32_t to) {
  const auto slot = std::ranges::find_if(slots_, [&](const Slot& s) {
    return s.state == state && (state == State::kFree || s.to == to);
  });
  return slot == slots_.end() ? nullptr : &*slot;
}

void Outbox::seal(Slot& slot) {
  slot.state = State::kSealed;
  if (slot.copying == 0) bell_.ring();
}

// All slots are in use: half of them may stay open for their ranks, the fullest
// of the others are sent.
void Outbox::seal_for_room() {
  const auto is_open = [](const Slot& slot) {
    return slot.state == State::kOpen;
  };
  auto open = static_cast<size_t>(std::ranges::count_if(slots_, is_open));
  for (; open > slots_.size() / 2; --open) {
    Slot* fullest = nullptr;
    for (Slot& slot : slots_)
      if (is_open(slot) &&
          (!fullest || slot.chunk.payload() > fullest->chunk.payload()))
        fullest = &slot;
    seal(*fullest);
  }
}

Outbox::Slot& Outbox::open_slot(uint32_t to,
                                std::unique_lock<std::mutex>& lock) {
  for (;;) {
    check();
    if (Slot* slot = find(State::kOpen, to)) return *slot;
    if (Slot* slot = find(State::kFree, to)) {
      slot->chunk.clear();
      slot->state = State::kOpen;
      slot->to = to;
      slot->id = next_id_++;
      slot->opened = Clock::now();
      unwritten_.insert(slot->id);
      return *slot;
    }
    seal_for_room();
    const trace::Span span("wait for room");
    changed_.wait_for(lock, kLook);
  }
}

void Outbox::put(uint32_t to, uint32_t file, uint64_t offset,
                 std::span<const iovec> parts) {
  uint64_t left = 0;
  for (const iovec& part : parts) left += part.iov_len;
  Cursor cursor(parts);
  std::unique_lock lock(mutex_);
  while (left) {
    Slot& slot = open_slot(to, lock);
    const std::span<std::byte> room = slot.chunk.add(file, offset, left);
    if (room.empty()) {
      seal(slot);
      continue;
    }
    ++slot.copying;
    lock.unlock();
    cursor.copy(room);
    lock.lock();
    if (--slot.copying == 0 && slot.state == State::kSealed) bell_.ring();
    offset += room.size();
    left -= room.size();
  }
}

void Outbox::when_written(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    actions_.push_back({next_id_, std::move(then)});
  }
  run_due();
}

std::vector<Outbox::Action> Outbox::due() {
  std::vector<Action> found;
  while (!actions_.empty() &&
         (unwritten_.empty() || *unwritten_.begin() >= actions_[0].before)) {
    found.push_back(std::move(actions_.front()));
    actions_.pop_front();
  }
  return found;
}

void Outbox::run_due() {
  std::unique_lock lock(mutex_);
  const std::vector<Action> found = due();
  lock.unlock();
  for (const Action& action : found) action.run();
}

void Outbox::drain() {
  std::unique_lock lock(mutex_);
  for (Slot& slot : slots_)
    if (slot.state == State::kOpen) seal(slot);
  const auto is_free = [](const Slot& s) { return s.state == State::kFree; };
  while (!unwritten_.empty() || !std::ranges::all_of(slots_, is_free)) {
    check();
    changed_.wait_for(lock, kLook);
    lock.unlock();
    run_due();
    lock.lock();
  }
  lock.unlock();
  run_due();
}

void Outbox::pump(Link& link, Wire* wire) {
  std::erase_if(empty_, [&](Link::Ticket ticket) { return link.done(ticket); });
  bool freed = false;
  std::erase_if(sending_, [&](const Sending& sending) {
    if (!wire->done(link, sending.ticket)) return false;
    const std::lock_guard lock(mutex_);
    sending.slot->state = State::kFree;
    return freed = true;
  });
  if (freed) changed_.notify_all();
  ask(link);
}

void Outbox::ask(Link& link) {
  const auto old = Clock::now() - kOldest;
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  for (Slot& slot : slots_) {
    if (slot.state == State::kOpen && slot.opened < old)
      slot.state = State::kSealed;
    if (slot.state != State::kSealed || slot.copying != 0) continue;
    slot.state = State::kAsked;
    post(link, slot.to, Tag::kAsk, {round_, 0, slot.id});
  }
}

// The rank that granted waits for an answer.
void Outbox::decline(Link& link, uint32_t from, const Note& note) {
  if (note.turn == 0)
    empty_.push_back(link.give(from, note.channel, {}));
  else
    post(link, from, Tag::kJoin, note);
}

void Outbox::granted(Link& link, Wire* wire, uint32_t from, const Note& note) {
  std::unique_lock lock(mutex_);
  Slot* asked = nullptr;
  for (Slot& slot : slots_)
    if (slot.state == State::kAsked && slot.to == from && slot.id == note.id)
      asked = &slot;
  if (!asked || stopped_ || note.round != round_)
    return decline(link, from, note);
  asked->state = State::kSending;
  bytes_ += asked->chunk.payload();
  ++messages_;
  lock.unlock();
  sending_.push_back(
      {asked, wire->give(link, from, note, asked->chunk.bytes())});
}

void Outbox::written(const Note& note) {
  {
    const std::lock_guard lock(mutex_);
    if (note.round != round_) return;
    unwritten_.erase(note.id);
  }
  changed_.notify_all();
}

}  // namespace ckpt::ranks
