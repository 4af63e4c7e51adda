// SPDX-License-Identifier: Apache-2.0
#include "lib/net/access.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/net/settings.h"

namespace ckpt::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kSumHeader = "x-amz-content-sha256: ";

std::vector<std::string> secret_lines(const Request& request) {
  std::vector<std::string> all;
  std::ranges::copy_if(
      request.secret_headers, std::back_inserter(all),
      [](const std::string& line) { return !line.starts_with(kSumHeader); });
  return all;
}

bool is_by(const Request& asked, const Access& how) {
  Request same;
  authorize(same, how, "", "");
  return secret_lines(asked) == secret_lines(same) &&
         asked.signing.has_value() == same.signing.has_value() &&
         (!same.signing || (asked.signing->key == same.signing->key &&
                            asked.signing->secret == same.signing->secret));
}

// Returns after a signal, too.
void sleep_for(milliseconds time) {
  constexpr milliseconds kStep{50};
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end && !interrupted())
    std::this_thread::sleep_for(std::min(kStep, time));
}

}  // namespace

void authorize(Request& made, const Access& how, const std::string& region,
               std::string_view sum) {
  made.signing.reset();
  made.secret_headers.clear();
  if (!how.bearer.empty()) {
    made.secret_headers.push_back("Authorization: Bearer " + how.bearer);
  } else if (how.credentials) {
    made.signing = Signing{fmt::format("aws:amz:{}:s3", region),
                           how.credentials->key, how.credentials->secret};
    made.secret_headers.push_back(fmt::format("{}{}", kSumHeader, sum));
    if (!how.credentials->session.empty())
      made.secret_headers.push_back("X-Amz-Security-Token: " +
                                    how.credentials->session);
  }
}

std::string sum_of(const Request& asked) {
  for (const std::string& line : asked.secret_headers)
    if (line.starts_with(kSumHeader)) return line.substr(kSumHeader.size());
  return {};
}

std::shared_ptr<const Access> AccessKeeper::get() {
  const std::lock_guard lock(mutex_);
  if (!access_) access_ = std::make_shared<const Access>(find_());
  return access_;
}

// New keys may be half of what was written.
bool AccessKeeper::is_recent() const {
  constexpr std::chrono::seconds kRecent{10};
  return renewed_ && steady_clock::now() - *renewed_ < kRecent;
}

bool AccessKeeper::renew(const Request& asked, bool expired) {
  const std::lock_guard lock(renewing_);
  const std::shared_ptr<const Access> held = get();
  if (!is_by(asked, *held)) return true;
  if (held->lasting) return false;
  const bool waits = (expired || is_recent()) && in_vain_ != held;
  const uint64_t looks = waits && !asked.heedless ? settings().retries : 0;
  for (uint64_t i = 0;; ++i) {
    if (find_others(*held, expired && i == looks)) return true;
    if (i == looks) break;
    sleep_for(milliseconds(settings().backoff_ms << std::min<uint64_t>(i, 4)));
    if (interrupted()) throw Interrupted("");
  }
  if (waits) in_vain_ = held;
  return false;
}

// A file that is being written has no keys, or no such profile, for a moment.
// `report` what else is wrong.
bool AccessKeeper::find_others(const Access& held, bool report) {
  std::shared_ptr<const Access> fresh;
  try {
    const failures::Unimportant may_come_right;
    fresh = std::make_shared<const Access>(find_());
  } catch (const Error& error) {
    if (!report) return false;
    failures::note(error);
    throw;
  }
  if (held.is_signed() && !fresh->is_signed()) return false;
  Request same;
  authorize(same, held, "", "");
  if (is_by(same, *fresh)) return false;
  renewed_ = steady_clock::now();
  const std::lock_guard lock(mutex_);
  access_ = std::move(fresh);
  return true;
}

}  // namespace ckpt::net
