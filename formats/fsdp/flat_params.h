// SPDX-License-Identifier: Apache-2.0
// FSDP's flat parameters (torch's FSDP1, fairscale): a module's parameters one
// after another in one vector, which is divided evenly among the ranks.
//
//   layers.0._flat_param  | norm | w1 | w2 | b | padding |
//                         |   rank 0   |   rank 1   |      ceil(length / ranks)
//
// torch with use_orig_params=True begins each parameter at a multiple of 16
// bytes and pads the end until the number of ranks divides the length; with
// False, and in fairscale, there is nothing between them. A rank's part may be
// padded to the common length. No tensor says which parameters there are:
// fairscale puts that beside them (fairscale.h), torch leaves it to the model's
// code, so --flat-params must say it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::fsdp {

struct Parameter {
  std::string name;  // within the module that was flattened
  Shape shape;
};

struct FlatParameter {
  std::string key;   // the flat tensor's name, with or without "model."
  std::string leaf;  // what the key has for the parameters: _flat_param
  std::vector<Parameter> parameters;  // in their order; not empty
  // In elements. Nothing: found from the length.
  std::optional<uint64_t> alignment;  // parameters begin at its multiples
  std::optional<uint64_t> padding;    // after the last one
};

struct FlatParameters {
  std::string source;              // the file, for messages
  bool from_user = false;          // --flat-params: its errors are usage errors
  std::vector<FlatParameter> all;  // in the order of module.parameters()
};

// --flat-params FILE.json:
//
//   {"_flat_param": [{"name": "emb.weight", "shape": [11, 7]}, …],
//    "layers.0._flat_param": {"alignment": 4, "padding": 2,
//                             "parameters": [{"name": …, "shape": …}, …]}}
//
// Throws usage_error that names the key, input_error for invalid JSON.
FlatParameters read_flat_params(const std::string& path);

// The flat tensor as it is in the checkpoint.
struct FlatTensor {
  std::string name;
  uint64_t length = 0;    // elements
  uint64_t itemsize = 0;  // bytes
  uint64_t ranks = 1;     // that share it
  bool padded = false;    // the last ranks' parts have the common length, too
};

// Where each parameter begins, in elements of the flat tensor. Throws
// usage_error (input_error if the metadata is the checkpoint's own) if the
// numbers don't add up, or if two alignments would both fit.
std::vector<uint64_t> begins(const FlatParameters& all,
                             const FlatParameter& flat,
                             const FlatTensor& tensor);

// True for the last part of a name that FSDP gives to flat parameters:
// _flat_param, flat_param, flat_param_0.
bool is_flat_leaf(std::string_view leaf);

}  // namespace ckpt::fsdp
