// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/answers.h"

#include <algorithm>
#include <exception>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/ranks/failure.h"
#include "reshard/ranks/pack.h"

namespace ckpt::ranks {
namespace {

using std::chrono::milliseconds;

// Applies once a rank is silent: it was already waited for.
constexpr auto kLittlePatience = std::chrono::seconds(8);
// After a signal launchers kill within a second or so.
constexpr auto kAfterSignal = milliseconds(700);

}  // namespace

Answers::Answers(Link& link, const Progress& progress)
    : link_(link),
      progress_(progress),
      results_(link.size()),
      answered_(link.size()),
      silent_(link.size()),
      pulse_(link.size(), Clock::now()) {
  for (uint32_t rank = 1; rank < link.size(); ++rank)
    pulse_.heard(rank, Clock::now());
}

void Answers::answer(uint32_t rank, bool good, std::string bytes) {
  answered_.at(rank) = true;
  pulse_.forget(rank);
  if (good)
    results_[rank] = std::move(bytes);
  else if (!is_stopped(bytes))
    fail(rank, std::move(bytes));
}

void Answers::fail(uint32_t rank, std::string failure) {
  if (!failure_) failure_.emplace(rank, std::move(failure));
}

void Answers::receive(const Message& message) {
  if (message.tag == Tag::kProgress)
    progress_.advance(Unpacker(message.bytes).take<uint64_t>());
  else if (message.tag == Tag::kFailed)
    fail(message.from, message.bytes);
  else if (message.tag == Tag::kDone && !message.bytes.empty())
    answer(message.from, message.bytes[0] != 0, message.bytes.substr(1));
}

void Answers::heard(uint32_t rank) {
  if (!answered_.at(rank) && !silent_[rank]) pulse_.heard(rank, Clock::now());
}

void Answers::watch() {
  const auto now = Clock::now();
  while (const auto rank = pulse_.silent(now)) {
    silent_[*rank] = true;
    pulse_.forget(*rank);
    fail(*rank, pack_failure(std::make_exception_ptr(silence(*rank))));
  }
}

void Answers::beat() {
  if (!pulse_.is_due(Clock::now())) return;
  for (uint32_t rank = 1; rank < link_.size(); ++rank)
    if (!answered_[rank] && !silent_[rank]) link_.post(rank, Tag::kBeat, "");
}

void Answers::stop() {
  stopped_ = Clock::now();
  for (uint32_t rank = 1; rank < link_.size(); ++rank)
    if (!answered_[rank]) link_.post(rank, Tag::kStop, "");
}

bool Answers::out_of_patience() const {
  if (!stopped_) return false;
  bool some_silent = false, others_answered = true;
  for (uint32_t rank = 0; rank < link_.size(); ++rank) {
    if (silent_[rank])
      some_silent = true;
    else if (!answered_[rank])
      others_answered = false;
  }
  if (some_silent && others_answered) return true;
  const auto patience = interrupted() ? kAfterSignal
                        : some_silent ? milliseconds(kLittlePatience)
                                      : milliseconds(kPatience);
  return Clock::now() - *stopped_ > patience;
}

bool Answers::complete() const {
  return std::ranges::all_of(answered_, [](bool there) { return there; });
}

}  // namespace ckpt::ranks
