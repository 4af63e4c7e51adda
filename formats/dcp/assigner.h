// SPDX-License-Identifier: Apache-2.0
// Which rank writes what several ranks hold: the one that writes least so far,
// the lowest among equals. A part counts as its whole tensor's size, a value as
// one byte (torch, since 2.3). Private to this room.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/dcp/boxes.h"

namespace ckpt::dcp {

class Assigner {
 public:
  explicit Assigner(uint32_t ranks) : sizes_(ranks, 0) {}

  // `bytes`: of the whole tensor. Both return the rank that writes it.
  uint32_t take(const Cutter::Replicas& among, uint64_t bytes);
  uint32_t take(std::span<const uint32_t> among, uint64_t bytes);

 private:
  void add(uint32_t rank, uint64_t bytes);
  std::vector<uint64_t> sizes_;
};

}  // namespace ckpt::dcp
