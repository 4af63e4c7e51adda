// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/exchange.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/plan/plan.h"
#include "reshard/ranks/control.h"
#include "reshard/ranks/rounds.h"

namespace ckpt::ranks {

using reshard::kNone;

uint64_t exchange_buffer(uint64_t asked, uint64_t max_mem) {
  const uint64_t most = max_mem / 2 / kExchangeSlots / 4096 * 4096;
  if (asked == 0)
    return std::max(kLeastExchangeBuffer, std::min(kExchangeBuffer, most));
  if (asked < kLeastExchangeBuffer)
    throw resource_error({}, "--exchange-buffer of {} bytes: at least {}",
                         asked, kLeastExchangeBuffer);
  if (asked > most)
    throw resource_error({},
                         "--exchange-buffer of {} bytes: {} of them are more "
                         "than half of --max-mem, {} bytes",
                         asked, kExchangeSlots, max_mem)
        .with_hint(fmt::format("--exchange-buffer {} fits", most));
  return asked / kSlotAlign * kSlotAlign;
}

void Exchange::open(Setup setup) {
  setup_ = std::move(setup);
  const Inbox::Setup& in = setup_.in;
  std::set<uint32_t> others;
  for (const uint32_t owner : setup_.owners)
    if (owner != kNone && owner != setup_.rank) others.insert(owner);
  keeps_ = in.sync || std::ranges::none_of(others, [&](uint32_t rank) {
             return in.away.at(rank);
           });
  const auto wire = make_wire();
  const std::span<std::byte> memory = wire->memory();
  const uint64_t out = setup_.buffer * (kExchangeSlots - Inbox::kSlots);
  setup_.in.memory = memory.subspan(out);
  set_wire(wire);
  outbox_.open(in.round, memory.first(out),
               static_cast<uint32_t>(others.size()));
  {
    const std::lock_guard lock(mutex_);
    round_ = in.round;
    drained_ = told_ = closed_ = false;
  }
  inbox_.open(setup_.in);
  open_ = true;
}

std::shared_ptr<Wire> Exchange::make_wire() const {
  const uint64_t bytes = setup_.buffer * kExchangeSlots;
  if (setup_.gpus.empty()) return std::make_shared<LinkWire>(bytes);
  return std::make_shared<Rounds>(
      reshard::CudaModule::get(),
      Rounds::Setup{.round = setup_.in.round,
                    .rank = setup_.rank,
                    .size = static_cast<uint32_t>(setup_.in.away.size()),
                    .id = setup_.gpus,
                    .bytes = bytes,
                    .on_failure = setup_.in.on_failure});
}

std::shared_ptr<Wire> Exchange::wire() const {
  const std::lock_guard lock(mutex_);
  return wire_;
}

void Exchange::set_wire(std::shared_ptr<Wire> wire) {
  const std::lock_guard lock(mutex_);
  if (wire && stopped_) wire->stop();
  wire_.swap(wire);
}

bool Exchange::takes(uint32_t file) const {
  const uint32_t owner = setup_.owners.at(file);
  return owner != kNone && owner != setup_.rank;
}

void Exchange::deliver(uint32_t file, uint64_t offset,
                       std::span<const iovec> parts) {
  outbox_.put(setup_.owners.at(file), file, offset, parts);
}

void Exchange::when_written(std::function<void()> then) {
  if (keeps_) outbox_.when_written(std::move(then));
}

void Exchange::finish() {
  outbox_.drain();
  std::unique_lock lock(mutex_);
  drained_ = true;
  bell_.ring();
  while (!closed_) {
    if (interrupted()) throw Interrupted("");
    if (stopped_) throw Stopped{};
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  lock.unlock();
  inbox_.close();
  outbox_.close();
  rounds_ = wire()->rounds();
  set_wire(nullptr);
}

Exchange::Traffic Exchange::traffic() const {
  return {outbox_.bytes(), inbox_.bytes(), outbox_.messages(), rounds_};
}

std::exception_ptr Exchange::end() {
  inbox_.end();
  open_ = false;
  if (const auto failure = inbox_.failure()) return failure;
  const auto carrier = wire();
  return carrier ? carrier->failure() : nullptr;
}

void Exchange::begin() {
  outbox_.begin();
  inbox_.begin();
  set_wire(nullptr);
  const std::lock_guard lock(mutex_);
  stopped_ = false;
}

void Exchange::stop() {
  outbox_.stop();
  inbox_.stop();
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (wire_) wire_->stop();
  }
  changed_.notify_all();
}

bool Exchange::hear(Link& link, const Message& message) {
  switch (message.tag) {
    case Tag::kAsk:
      inbox_.asked(message.from, note_of(message));
      return true;
    case Tag::kGrant:
      outbox_.granted(link, wire().get(), message.from, note_of(message));
      return true;
    case Tag::kJoin:
      if (const auto carrier = wire())
        carrier->joined(message.from, note_of(message));
      return true;
    case Tag::kWritten:
      outbox_.written(note_of(message));
      return true;
    case Tag::kDrained: {
      const std::lock_guard lock(mutex_);
      ++count_[note_of(message).round];
      return true;
    }
    case Tag::kClose: {
      const std::lock_guard lock(mutex_);
      if (note_of(message).round == round_) closed_ = true;
      changed_.notify_all();
      return true;
    }
    default:
      return false;
  }
}

bool Exchange::pump(Link& link) {
  const auto carrier = wire();
  const bool went_on = carrier && carrier->pump();
  outbox_.pump(link, carrier.get());
  inbox_.pump(link, carrier.get());
  tell(link);
  return went_on;
}

// Rank 0 counts who has drained, itself included, and closes.
void Exchange::tell(Link& link) {
  const std::lock_guard lock(mutex_);
  if (!drained_ || stopped_ || closed_) return;
  if (!told_ && link.rank() != 0) post(link, 0, Tag::kDrained, {round_, 0, 0});
  if (!told_ && link.rank() == 0) ++count_[round_];
  told_ = true;
  if (link.rank() != 0 || count_[round_] != link.size()) return;
  for (uint32_t rank = 1; rank < link.size(); ++rank)
    post(link, rank, Tag::kClose, {round_, 0, 0});
  count_.erase(round_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace ckpt::ranks
