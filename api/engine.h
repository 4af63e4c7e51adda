// SPDX-License-Identifier: Apache-2.0
// How a check reads: limits, and whom it tells.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ckpt/read_mode.h"
#include "lib/progress.h"

namespace ckpt::library {

struct Engine {
  uint32_t threads = 0;                  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;  // bytes
  bool cuda = false;
  ReadMode io = ReadMode::kAuto;
  // Makes what is told of one pass; passes follow one another.
  std::function<Progress()> progress = {};
  // Gets warnings, a sentence a call.
  std::function<void(const std::string& line)> note = {};

  Progress make_progress() const { return progress ? progress() : Progress{}; }
  void warn(const std::string& line) const {
    if (note) note(line);
  }
};

}  // namespace ckpt::library
