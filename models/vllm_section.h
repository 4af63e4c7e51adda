// SPDX-License-Identifier: Apache-2.0
// The family files' part about vLLM ("vllm"): what it calls and joins
// otherwise than transformers. formats/vllm knows what that means for bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::families {

struct VllmSection {
  // What is joined, in that order.
  struct Fusion {
    std::string to;
    std::vector<std::string> from;
  };

  // Part of a name, and what vLLM calls it. For a tensor in several modules,
  // vLLM's is the smallest name (its loader looks for that one).
  struct Renaming {
    std::string hf;
    std::string vllm;
    enum How : uint8_t {
      kSame,
      kTurned,  // HF swaps the last two dimensions
      kRow,     // HF has [1, n], vLLM [n]
    } how = kSame;
  };

  // HF: MODULE.experts.N.GATE.weight …
  struct Experts {
    std::string gate, up, down;
  };

  std::vector<Fusion> fusions;
  std::vector<Renaming> renamings;
  std::optional<Experts> experts;  // none: a dense model, or one stacked in HF
  bool head = true;     // a tied head is a parameter with its own name
  bool tied = false;    // if config.json does not say
  std::string needs;    // what vLLM always has, but transformers may not
  bool paired = false;  // rows of each query and key head are in pairs; vLLM
                        // has halves
};

}  // namespace ckpt::families
