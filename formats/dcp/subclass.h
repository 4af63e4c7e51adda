// SPDX-License-Identifier: Apache-2.0
// Items that are tensor subclasses: torchao's quantized weights and the like.
// The index lists such an item as a tensor of the outer dtype and shape; the
// archive holds its parts and the class that puts them together.
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, torchao…Int8Tensor,
//       (Int8Tensor, bfloat16, (64, 128), …),
//       {"qdata": i8 [64, 128], "scale": f32 [64, 1], "block_size": [1, 128]})
//
// Parts are tensors NAME.qdata, NAME.scale; if a part is itself such a tensor,
// NAME.tensor_impl.data. The whole is the object NAME, whose archive goes to
// another distributed checkpoint byte for byte. Nothing is executed: only the
// class knows what the elements mean.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"

namespace ckpt::dcp {

struct Subclass {
  std::string class_name;  // "torchao.quantization.Int8Tensor"
  DType dtype = DType::f32;
  Shape shape;
  bool requires_grad = false;
};

// Describes a value that is such a tensor.
std::optional<Subclass> subclass_of(const pickle::Document& document,
                                    pickle::Id node);

// Its parts, named below `name`, with the extents that torch::open_item gave.
// Throws input_error for a part whose geometry leaves its storage.
std::vector<Tensor> parts_of(const torch::Container& item, pickle::Id node,
                             const std::string& name);

// The same for an object with an archive. A distributed checkpoint is given the
// archive to write, with the parts in it.
std::optional<Subclass> subclass_of(const Object& object);

// The objects of a catalog that are such tensors and will be written: index of
// a part among the tensors -> index of its object. Omits an object none of
// whose parts are there (it was not selected). Throws unfaithful_error if some
// parts are there and others not: a selection or rename cuts through a tensor.
std::unordered_map<uint32_t, uint32_t> find_parts(const Catalog& source);

}  // namespace ckpt::dcp
