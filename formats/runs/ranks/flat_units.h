// SPDX-License-Identifier: Apache-2.0
// FSDP1's units: each lays its parameters end to end and cuts that evenly.
//
//   use_orig_params=False  | embed | norm | head |padding|
//   use_orig_params=True   | embed |gap| norm |gap| head |padding|
//                          |  part 0  |  part 1  |  part 2  |
//
// With use_orig_params each parameter begins at a multiple of 16 bytes, the
// padding makes the parts equal, and the optimizer numbers the parameters;
// without, it numbers the units. Private to this room.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/optimizer/order.h"

namespace ckpt::runs {

struct FlatUnit {
  std::string name;  // "model.layers.0."; "": what no layer holds
  std::vector<Parameter> parameters;
  std::vector<uint64_t> numbers;  // of the parameters, in the model's order
  uint64_t elements = 0;          // of all parameters
  uint64_t item = 1;              // bytes of an element of the model
};

// How FSDP's policies wrap a model, most usual first: each layer, with what no
// layer holds as the root's own unit; adapters' modules besides (verl with
// LoRA); the model as one unit. A root without own parameters has no unit.
std::vector<std::vector<FlatUnit>> ways_to_wrap(
    const ParameterOrder& order, std::span<const Tensor* const> model);

// use_orig_params: each parameter's elements in part `part` of `parts`, of the
// unit's parameters in their order; empty ranges where it has none.
std::vector<FlatRange> aligned_part(const FlatUnit& unit, uint64_t part,
                                    uint64_t parts);

}  // namespace ckpt::runs
