// SPDX-License-Identifier: Apache-2.0
// What names and shapes say about a model whose family has no rules.
//
//   layers.0  {attn.q, attn.k, mlp.up}   the same three      ┐ regular: a set
//   layers.1  {attn.q, attn.k, mlp.up}                       ┘ that recurs
//   layers.3  {attn.q, attn.k, mlp.up}   2 is a gap
//   layers.4  {attn.q, mlp.up}           attn.k is missing
//   layers.5  …
//
// Only what recurs is judged: nn.Sequential numbers its activations too, and
// the first and the last block of many models are of their own kind.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/text/json.h"

namespace ckpt::families {

struct Structure {
  std::vector<Problem> problems;  // layer_gap, missing_tensor, shape
  bool repeats = false;           // there are layers that recur
  // A number of the configuration (layers, vocabulary …) was compared, and held
  // or is a problem.
  bool compared = false;
  // A layer has other tensors than each of its siblings: as a hybrid's does,
  // or one that lost some.
  bool uneven = false;
};

// `names` are shown in messages as they are. `config`: config.json, or null.
Structure check_structure(const std::vector<const Tensor*>& tensors,
                          const nlohmann::json& config,
                          const std::string& path);

}  // namespace ckpt::families
