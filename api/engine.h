// SPDX-License-Identifier: Apache-2.0
// How a check reads: its limits, and its callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ckpt/read_mode.h"
#include "lib/progress.h"

namespace ckpt::library {

// A display for programs: bytes of the stage that is under way, and of all of
// it.
Progress stages_told(
    const std::function<void(uint64_t done, uint64_t total)>& tell);

struct Engine {
  uint32_t threads = 0;                  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;  // bytes
  bool cuda = false;
  ReadMode io = ReadMode::kAuto;
  // Makes the progress display of one pass; passes follow one another.
  std::function<Progress()> progress = {};
  // Called with warnings, one sentence at a time.
  std::function<void(const std::string& line)> note = {};

  Progress make_progress() const { return progress ? progress() : Progress{}; }
  void warn(const std::string& line) const {
    if (note) note(line);
  }
};

}  // namespace ckpt::library
