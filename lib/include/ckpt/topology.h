// SPDX-License-Identifier: Apache-2.0
// Sizes of the four kinds of model parallelism.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt {

struct Topology {
  uint32_t tp = 1;  // tensor
  uint32_t pp = 1;  // pipeline
  uint32_t dp = 1;  // data: FSDP, HSDP shards and ZeRO alike
  uint32_t ep = 1;  // expert
  friend bool operator==(const Topology&, const Topology&) = default;
};

// "tp=4 pp=2"; sizes of one are left out, and all ones give "unsharded".
std::string to_string(const Topology& topology);

}  // namespace ckpt
