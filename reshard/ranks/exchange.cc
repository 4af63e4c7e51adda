#include "reshard/ranks/exchange.h"

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/plan.h"
#include "reshard/ranks/control.h"

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
  return asked;
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
  outbox_.open(in.round, in.buffer * (kExchangeSlots - Inbox::kSlots),
               static_cast<uint32_t>(others.size()));
  {
    const std::lock_guard lock(mutex_);
    round_ = in.round;
    drained_ = told_ = closed_ = false;
  }
  inbox_.open(setup_.in);
  open_ = true;
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
}

Exchange::Traffic Exchange::traffic() const {
  return {outbox_.bytes(), inbox_.bytes(), outbox_.messages()};
}

std::exception_ptr Exchange::end() {
  inbox_.end();
  open_ = false;
  return inbox_.failure();
}

void Exchange::begin() {
  outbox_.begin();
  inbox_.begin();
  const std::lock_guard lock(mutex_);
  stopped_ = false;
}

void Exchange::stop() {
  outbox_.stop();
  inbox_.stop();
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

bool Exchange::hear(Link& link, const Message& message) {
  switch (message.tag) {
    case Tag::kAsk:
      inbox_.asked(message.from, note_of(message));
      return true;
    case Tag::kGrant:
      outbox_.granted(link, message.from, note_of(message));
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

void Exchange::pump(Link& link) {
  outbox_.pump(link);
  inbox_.pump(link);
  tell(link);
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
