// SPDX-License-Identifier: Apache-2.0
// How long-running work reports its progress. A value with four functions, all
// of them optional: the default is silence.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace ckpt {

// advance() and file() are called from any thread, advance() for every few MiB;
// begin() and end() once each, from one thread. begin() may be called again
// after end(), for the next stage.
struct Progress {
  std::function<void(std::string_view stage, uint64_t total_bytes)> on_begin;
  std::function<void(uint64_t bytes)> on_advance;
  std::function<void(std::string_view path)> on_file;
  std::function<void()> on_end;

  // `stage` is a verb for the line: "copying", "verifying".
  void begin(std::string_view stage, uint64_t total_bytes) const {
    if (on_begin) on_begin(stage, total_bytes);
  }
  void advance(uint64_t bytes) const {
    if (on_advance) on_advance(bytes);
  }
  void file(std::string_view path) const {
    if (on_file) on_file(path);
  }
  void end() const {
    if (on_end) on_end();
  }
};

}  // namespace ckpt
