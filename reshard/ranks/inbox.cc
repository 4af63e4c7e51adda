// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/inbox.h"

#include <chrono>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "lib/io/writeback.h"
#include "lib/session.h"
#include "lib/trace.h"
#include "reshard/ranks/chunk.h"
#include "reshard/run/behind.h"
#include "reshard/sources/sources.h"

namespace ckpt::ranks {
namespace {

constexpr auto kIdle = std::chrono::milliseconds(200);
constexpr uint64_t kMostUnflushed = uint64_t{256} << 20;
constexpr uint64_t kBehind = uint64_t{16} << 20;

}  // namespace

// What the writer writes to.
class Inbox::Files {
 public:
  explicit Files(const Setup& setup) : setup_(setup), handles_(true) {
    if (setup.behind) behind_.turn_on();
  }

  void write(uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
    if (file >= setup_.files.size() || setup_.files[file].path.empty())
      throw bug_error({}, "a message for file {}, which another rank writes",
                      file);
    const OwnFile& own = setup_.files[file];
    if (offset > own.size || bytes.size() > own.size - offset)
      throw bug_error({own.path, {}},
                      "a message for {} bytes at {} of a file of {}",
                      bytes.size(), offset, own.size);
    handles_.get(own.path)->write(offset, bytes);
    behind_.wrote(file, offset, bytes.size());
    unflushed_.insert(file);
    since_ += bytes.size();
    if (setup_.behind && (left_ += bytes.size()) >= kBehind) leave_behind();
  }
  bool is_due() const { return since_ >= kMostUnflushed; }
  void flush() {
    for (const uint32_t file : unflushed_)
      handles_.get(setup_.files[file].path)->sync();
    unflushed_.clear();
    since_ = 0;
  }

 private:
  void leave_behind() {
    left_ = 0;
    const reshard::Behind::Work work = behind_.next();
    for (const auto& range : work.started)
      handles_.get(setup_.files[range.file].path)
          ->start_writeback(range.begin, range.end - range.begin);
    for (const auto& range : work.settled) {
      const auto handle = handles_.get(setup_.files[range.file].path);
      io::wait_writeback(*handle, range.begin, range.end - range.begin);
      handle->drop_cache(range.begin, range.end - range.begin);
    }
  }

  const Setup& setup_;
  reshard::HandleCache handles_;
  reshard::Behind behind_;
  std::set<uint32_t> unflushed_;
  uint64_t since_ = 0;  // bytes since the last flush
  uint64_t left_ = 0;   // bytes since the last leave_behind()
};

void Inbox::begin() {
  const std::lock_guard lock(mutex_);
  stopped_ = ending_ = open_ = false;
  slots_.clear();
  arrived_.clear();
  written_.clear();
  unflushed_.clear();
  failure_ = nullptr;
}

void Inbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  work_.notify_all();
}

void Inbox::open(Setup setup) {
  const std::lock_guard lock(mutex_);
  setup_ = std::move(setup);
  bytes_ = 0;
  slots_ = std::vector<Slot>(kSlots);
  const uint64_t size = setup_.memory.size() / kSlots;
  for (uint32_t i = 0; i < kSlots; ++i)
    slots_[i].memory = setup_.memory.subspan(i * size, size);
  std::erase_if(asks_,
                [&](const Ask& ask) { return ask.note.round < setup_.round; });
  open_ = true;
  writer_ = std::thread(in_session([this] { write_all(); }));
}

void Inbox::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
  if (writer_.joinable()) writer_.join();
}

void Inbox::close() {
  end();
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  open_ = false;
  slots_.clear();
}

std::exception_ptr Inbox::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Inbox::write_all() {
  try {
    Files files(setup_);
    for (;;) {
      std::optional<uint32_t> slot;
      {
        std::unique_lock lock(mutex_);
        work_.wait_for(lock, kIdle, [this] {
          return !arrived_.empty() || ending_ || stopped_;
        });
        if (stopped_ || (ending_ && arrived_.empty())) return;
        if (!arrived_.empty()) {
          slot = arrived_.front();
          arrived_.pop_front();
        }
      }
      if (slot) write(files, *slot);
      if (!slot || files.is_due()) flush(files);
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    setup_.on_failure();
  }
}

void Inbox::write(Files& files, uint32_t index) {
  Slot& slot = slots_[index];  // only ours until it is free
  const trace::Span span("write for others", slot.bytes);
  for_each_piece(
      slot.memory.first(slot.bytes),
      [&](uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
        files.write(file, offset, bytes);
        bytes_ += bytes.size();
      });
  const bool waits = setup_.sync && setup_.away.at(slot.ask.from);
  if (waits) unflushed_.push_back(slot.ask);
  {
    const std::lock_guard lock(mutex_);
    if (!waits) written_.push_back(slot.ask);
    slot.free = true;
  }
  bell_.ring();
}

void Inbox::flush(Files& files) {
  if (unflushed_.empty()) return;
  files.flush();
  {
    const std::lock_guard lock(mutex_);
    written_.insert(written_.end(), unflushed_.begin(), unflushed_.end());
  }
  unflushed_.clear();
  bell_.ring();
}

void Inbox::asked(uint32_t from, const Note& note) {
  const std::lock_guard lock(mutex_);
  if (note.round >= setup_.round) asks_.push_back({from, note});
}

void Inbox::arrived(uint32_t index, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_.at(index);
  slot.bytes = bytes;
  if (bytes == 0 || stopped_)
    slot.free = true;  // the sender has stopped
  else
    arrived_.push_back(index);
}

void Inbox::pump(Link& link, Wire* wire) {
  const size_t before = granted_.size();
  std::erase_if(granted_, [&](const Granted& granted) {
    const auto bytes = wire->done(link, granted.ticket);
    if (bytes) arrived(granted.slot, *bytes);
    return bytes.has_value();
  });
  if (granted_.size() != before) work_.notify_all();
  std::vector<Ask> said;
  {
    const std::lock_guard lock(mutex_);
    said.swap(written_);
    if (open_ && !stopped_ && wire) grant(link, *wire);
  }
  for (const Ask& ask : said) post(link, ask.from, Tag::kWritten, ask.note);
}

void Inbox::grant(Link& link, Wire& wire) {
  for (uint32_t i = 0; i < slots_.size() && !asks_.empty(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.free) continue;
    const Ask ask = asks_.front();
    if (ask.note.round != setup_.round) return;  // for the next exchange
    asks_.pop_front();
    slot.free = false;
    slot.ask = ask;
    const Note note{.round = ask.note.round, .channel = i, .id = ask.note.id};
    granted_.push_back({i, wire.grant(link, ask.from, note, slot.memory)});
  }
}

}  // namespace ckpt::ranks
