// SPDX-License-Identifier: Apache-2.0
// One rank's *_model_states.pt: the module (for ZeRO 1 and 2 in 16 bit: views
// into a few flat storages; for ZeRO 3 empty), names and shapes of what the
// optimizer has, frozen parameters, and what the trainer stored with them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "containers/torch/container.h"
#include "containers/torch/tree.h"

namespace ckpt::deepspeed {

struct NamedShape {
  std::string name;
  Shape shape;
  uint64_t numel = 0;
};

struct ModelRank {
  std::string path;
  uint32_t mp = 0;
  std::optional<uint32_t> dp;  // ZeRO 3
  torch::Container container;
  torch::Tree tree;  // of everything
  // Names lack "module."; empty tensors are left out if the name has a shape
  // below.
  std::vector<std::pair<std::string, torch::TensorRef>> module;
  std::vector<std::vector<NamedShape>> groups;  // param_shapes
  std::vector<NamedShape> frozen;
  std::vector<std::pair<std::string, torch::TensorRef>> fragments;  // frozen
  std::vector<std::pair<std::string, std::string>> shared;  // name, source
  std::set<std::string> buffers;
  bool has_shapes = false;  // param_shapes is there
  std::optional<uint64_t> tp, pp, dp_world;
  uint64_t stage = 0;  // of ds_config

  pickle::Id find(std::string_view key) const {
    return container.document->find(container.document->root(), key);
  }
};

ModelRank read_model_rank(torch::Container container);

}  // namespace ckpt::deepspeed
