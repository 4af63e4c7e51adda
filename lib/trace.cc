// SPDX-License-Identifier: Apache-2.0
#include "lib/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
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
  std::string path;
  std::unique_ptr<io::Note> file;
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
  std::string text = fmt::format(
      "{{\"otherData\":{},\"dropped\":\"{}\"}},\n"
      "\"traceEvents\":[\n",
      kMark, all.dropped);
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
  return text += "\n]}\n";
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

void start(const std::string& path, const io::NoteRules& rules) {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  if (!all.path.empty())
    throw usage_error({path, {}}, "a second trace; a process writes one");
  all.file = std::make_unique<io::Note>(path, rules);
  all.path = path;
  all.began = detail::now();
  detail::on = true;
  std::atexit([] { finish(); });
}

std::pair<std::string, uint64_t> finish() {
  Record& all = record();
  const std::lock_guard lock(all.mutex);
  detail::on = false;
  if (!all.file) return {};
  const std::string text = text_of(all);
  all.events.clear();
  const std::unique_ptr<io::Note> file = std::move(all.file);
  try {
    file->commit(text);
  } catch (const Error&) {
    return {};
  }
  return {all.path, text.size()};
}

}  // namespace ckpt::trace
