// SPDX-License-Identifier: Apache-2.0
// Tensors from calls of torch's rebuild functions, recognised by name and
// checked. Nothing is called.
//
//   _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
//   _rebuild_tensor_v3(untyped storage, …, hooks, dtype)
//   _rebuild_parameter(tensor, requires_grad, hooks)
//   _rebuild_from_type_v2(function, class, arguments, state)
//   …  (docs: torch_pickle, section 5)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "containers/torch/container.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

// A rank's part of a DTensor or ShardedTensor.
struct Distributed {
  Shape global_shape;
  std::vector<Piece> pieces;  // in the coordinates of the global tensor; may
                              // be none (an empty local shard)
};

// A strided tensor with data. dtype, shape and extent describe the (local)
// tensor that this file holds.
struct TensorRef {
  DType dtype = DType::f32;
  Shape shape;
  Extent extent;  // strides empty if row-major contiguous
  uint8_t transform = kNoTransform;
  bool requires_grad = false;
  bool parameter = false;
  uint32_t storage = 0;  // index into Storages::all; equal means shared
  std::optional<Distributed> distributed;
  pickle::Id quantizer = pickle::kNoId;  // the tuple, for quantized tensors

  const Shape& global_shape() const {
    return distributed ? distributed->global_shape : shape;
  }
};

// The tensor at a node, through any of the wrappers above; nothing if the node
// is not a tensor or is one without strided data (sparse, nested, meta: their
// parts are found by walking, tree.h). Throws input_error for a rebuild call
// with wrong arguments or a geometry that reaches outside its storage. `name`
// is for the message.
std::optional<TensorRef> as_tensor(const pickle::Document& document,
                                   pickle::Id node, const Storages& storages,
                                   std::string_view name = {});

// A catalog tensor with the pieces of `ref`.
Tensor make_tensor(std::string name, const TensorRef& ref);

// The DType of a GLOBAL "torch float32" (aliases such as torch.half too).
std::optional<DType> as_dtype(const pickle::Document& document,
                              pickle::Id node);

// The integers of a torch.Size, tuple or list; nothing for anything else or if
// an element is not an integer.
std::optional<std::vector<int64_t>> as_ints(const pickle::Document& document,
                                            pickle::Id node);

// The row-major little-endian content of a small tensor (a step, a mesh, a
// scale), with transforms applied except conj and neg. Throws input_error if it
// is larger than `limit` bytes.
std::string read_content(const Catalog& catalog, const TensorRef& ref,
                         uint64_t limit = 1 << 20);

// Bytes of catalog.files[file]. Throws input_error if the record that they are
// a part of does not have its checksum (catalog.crcs), so that no checksum is
// ever made of what failed one.
std::string read_content(const Catalog& catalog, uint32_t file, uint64_t offset,
                         uint64_t size);

// What a persistent id of `container` refers to, little-endian. Of a record
// without its checksum the content is an error, which names the value.
Content storage_content(const Catalog& catalog, const Container& container,
                        pickle::Id node);
// The element of a count or another scalar, where it is stored as it is: f32,
// f64, i64 or i32. Nothing for another dtype and for a transform.
std::optional<double> read_number(const Catalog& catalog, DType dtype,
                                  const Piece& piece);
// The elements of a small integer tensor.
std::vector<int64_t> read_ints(const Catalog& catalog, const TensorRef& ref);

}  // namespace ckpt::torch
