// SPDX-License-Identifier: Apache-2.0
// What each thread did when, for chrome://tracing and Perfetto:
//
//   {"traceEvents":[
//     {"name":"read","ph":"X","pid":1,"tid":2,"ts":12.3,"dur":4.5,
//      "args":{"bytes":2097152}}, …],
//    "otherData":{"dropped":"0"}}
//
// The Trace Event Format's complete events ("X"): microseconds since the start,
// and the duration. Off unless start() was called; then a span costs two clock
// reads. At most kMostEvents are kept, 32 bytes each; the file says how many
// came after them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ckpt::trace {

inline constexpr size_t kMostEvents = 250'000;

// Opens the file (throws kIo or kMissing if it can't be created) and records
// from here on. Once per process.
void start(const std::string& path);
// Writes what was recorded; start() makes the end of the process do so, too.
// Errors are swallowed then: a trace is not part of the result.
void finish();

namespace detail {
extern std::atomic<bool> on;
uint64_t now();  // nanoseconds
void add(const char* name, uint64_t begin, uint64_t bytes);
}  // namespace detail

// Records the time from its construction to its destruction, on this thread.
// `name` is a literal.
class Span {
 public:
  explicit Span(const char* name, uint64_t bytes = 0)
      : name_(detail::on.load(std::memory_order_relaxed) ? name : nullptr),
        bytes_(bytes),
        begin_(name_ ? detail::now() : 0) {}
  ~Span() {
    if (name_) detail::add(name_, begin_, bytes_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* name_;
  uint64_t bytes_;
  uint64_t begin_;
};

}  // namespace ckpt::trace
