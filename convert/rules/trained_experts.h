// SPDX-License-Identifier: Apache-2.0
// transformers 5 trains all experts of a layer in one parameter and saves them
// one by one. Published files of Qwen 3.5 and 3.6 have them as they are
// trained.
//
//   trained   mlp.experts.gate_up_proj  [experts, 2 * width, hidden]
//             mlp.experts.down_proj     [experts, hidden, width]
//   saved     mlp.experts.3.gate_proj.weight, up_proj, down_proj
//             block_sparse_moe.experts.3.w1.weight, w3, w2      (Mixtral)
//
// models/hf_names.h has both names of classes that are known. This goes by the
// names alone: for a configuration without a class, and for optimizer state.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// By its name alone.
bool is_trained_experts(const Tensor& tensor);

// The saved parameters of a trained one; none if it is not trained experts, or
// if the model lacks the first of them (`there`).
std::vector<std::string> saved_experts(
    const std::string& trained, const Shape& shape,
    const std::function<bool(const std::string&)>& there);

// Splits a tensor of a trained parameter's shape into the parts that
// saved_experts names. Throws unfaithful_error for a shape that can't be split.
std::vector<Tensor> split_experts(const Tensor& trained,
                                  const std::vector<std::string>& saved);

// The same for all tensors of a model that are trained experts, and not wanted
// as they are while their parts are. Their extents must be located.
std::vector<Tensor> split_trained(
    std::vector<Tensor> tensors,
    const std::function<bool(const std::string&)>& wanted);

// The way back: fuses tensors of single experts as transformers 5 trains them.
// Mixtral's stay apart. `fused` gets the new names: saved name ─► trained name.
std::vector<Tensor> fuse_experts(std::vector<Tensor> saved,
                                 std::map<std::string, std::string>& fused);

}  // namespace ckpt::families
