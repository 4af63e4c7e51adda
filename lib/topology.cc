// SPDX-License-Identifier: Apache-2.0
#include "ckpt/topology.h"

namespace ckpt {

std::string to_string(const Topology& topology) {
  std::string text;
  const auto add = [&](const char* label, uint32_t n) {
    if (n == 1) return;
    if (!text.empty()) text += ' ';
    text += std::string(label) + "=" + std::to_string(n);
  };
  add("tp", topology.tp);
  add("pp", topology.pp);
  add("dp", topology.dp);
  add("ep", topology.ep);
  return text.empty() ? "unsharded" : text;
}

}  // namespace ckpt
