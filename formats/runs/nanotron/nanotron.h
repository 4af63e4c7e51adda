// SPDX-License-Identifier: Apache-2.0
// nanotron's folder of a step: one safetensors file per parameter and
// tensor-parallel rank, whose metadata says where its slices go.
//
//   model/model/decoder/0/pp_block/attn/qkv_proj/
//     model_weight_pp-rank-0-of-1_tp-rank-1-of-2.safetensors
//       "data"           [18, 12]
//       __metadata__     unsharded_shape             "(36, 12)"
//                        local_global_slices_pairs   local#global;…
//
// What no layer cuts (norms) is one file, model_weight.safetensors. The
// optimizer's files have `names`, number -> name, and tensors that are cut as
// the parameter is; with ZeRO 1 (…_dp-D-of-DP_…) each data-parallel rank has a
// run of a rank's flattened tensor. `gradient_accumulator` has f32 masters by
// name, cut the same way. nanotron: src/nanotron/serialize/, optim/zero.py.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/safetensors/header.h"
#include "formats/format.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/nanotron/slices.h"

namespace ckpt::runs::nanotron {

// A parameter of model/.
struct Weight {
  Tensor tensor;
  bool sharded = false;        // its files are of ranks
  uint64_t tp = 1, stage = 0;  // of their names
  std::vector<Share> shares;
  std::string file;  // "model/…/model_weight": what its files' names begin with
  std::optional<safetensors::Metadata> metadata;  // of the first one
};

struct Step {
  Catalog catalog;
  std::map<std::string, Weight> weights;
  std::string pattern;  // of the optimizer's files, in the step; "": none
  Numbers ranks;        // P, T, X and, with ZeRO 1, D
};

// What a tensor of an optimizer's file is of.
struct State {
  std::string param;
  std::string state;
};
inline constexpr std::string_view kMaster = "fp32";

// {0: "model.…weight", …} of an optimizer's file.
std::map<uint64_t, std::string> names_of(const Catalog& one,
                                         const std::string& path);
// Nothing for a value that is no parameter's.
std::optional<State> state_of(const Tensor& tensor,
                              const std::map<uint64_t, std::string>& names);

// Throws input_error for files that don't fit together or lack a rank.
Step read(const std::string& folder, const formats::ReadOptions& options);

}  // namespace ckpt::runs::nanotron
