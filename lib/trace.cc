// SPDX-License-Identifier: Apache-2.0
#include "lib/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::trace {
namespace detail {
std::atomic<bool> on = false;

uint64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}
}  // namespace detail

namespace {

struct Event {
  const char* name = nullptr;
  uint64_t begin = 0;  // nanoseconds
  uint32_t microseconds = 0;
  uint32_t thread = 0;
  uint64_t bytes = 0;
};

struct Record {
  std::mutex mutex;
  std::vector<Event> events;
  uint64_t dropped = 0;
  uint64_t began = 0;
  int file = -1;
};

// Never freed: threads may outlive main's statics.
Record& record() {
  static Record* const all = new Record;
  return *all;
}

// Small numbers, in the order in which threads first did something.
uint32_t thread_number() {
  static std::atomic<uint32_t> next = 1;
  thread_local const uint32_t number = next++;
  return number;
}

std::string text_of(const Record& all) {
  std::string text = "{\"traceEvents\":[\n";
  const char* comma = "";
  for (const Event& event : all.events) {
    fmt::format_to(std::back_inserter(text),
                   "{}{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},"
                   "\"ts\":{:.3f},\"dur\":{},\"args\":{{\"bytes\":{}}}}}",
                   comma, event.name, event.thread,
                   static_cast<double>(event.begin - all.began) / 1000,
                   event.microseconds, event.bytes);
    comma = ",\n";
  }
  text +=
      fmt::format("\n],\"otherData\":{{\"dropped\":\"{}\"}}}}\n", all.dropped);
  return text;
}

}  // namespace

void detail::add(const char* name, uint64_t begin, uint64_t bytes) {
  const uint64_t took = (now() - begin) / 1000;
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (all.events.size() == kMostEvents) {
    ++all.dropped;
    return;
  }
  all.events.push_back(
      {name, begin, static_cast<uint32_t>(std::min<uint64_t>(took, UINT32_MAX)),
       thread_number(), bytes});
}

void start(const std::string& path) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (all.file >= 0)
    throw usage_error({path, {}}, "a second trace; a process writes one");
  all.file =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (all.file < 0) throw io_error(path, "cannot create the trace", errno);
  all.began = detail::now();
  detail::on = true;
  std::atexit(finish);
}

void finish() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  detail::on = false;
  if (all.file < 0) return;
  const std::string text = text_of(all);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(all.file, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  ::close(all.file);
  all.file = -1;
  all.events.clear();
}

}  // namespace ckpt::trace
