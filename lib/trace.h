// SPDX-License-Identifier: Apache-2.0
// What each thread did when, for chrome://tracing and Perfetto:
//
//   {"otherData":{"maker":"ckpt","dropped":"0"},
//    "traceEvents":[
//     {"name":"read","ph":"X","pid":1,"tid":2,"ts":12.3,"dur":4.5,
//      "args":{"bytes":2097152}}, …]}
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
#include <string_view>
#include <utility>

#include "lib/io/note.h"

namespace ckpt::trace {

inline constexpr size_t kMostEvents = 250'000;

// By which a trace of ckpt's is known.
inline constexpr std::string_view kMark = "{\"maker\":\"ckpt\"";

// Opens the file (throws what io::Note throws) and records from here on. Once
// per process.
void start(const std::string& path, const io::NoteRules& rules);
// Writes what was recorded and returns the path and the bytes written, or "" if
// nothing is being recorded; start() makes the end of the process do so, too.
// Errors are swallowed: a trace is not part of the result.
std::pair<std::string, uint64_t> finish();

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
