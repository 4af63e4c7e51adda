// SPDX-License-Identifier: Apache-2.0
// How pipeline stages share layers, as Megatron's arguments say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::megatron {

struct StageSplit {
  uint32_t vpp = 1;
  std::vector<uint64_t> layers;  // of each chunk [v * pp + p]
  // How args say it, if stages are unequal: the layers of the first and the
  // last stage, or Megatron's own notation.
  std::optional<uint64_t> first_stage;
  std::optional<uint64_t> last_stage;
  std::string notation;
};

// Sets how args say it, from `layers` and `vpp`. `prediction` is the number of
// multi-token prediction layers, which are on the last stage.
void describe_stages(StageSplit& split, uint64_t prediction);

}  // namespace ckpt::megatron
