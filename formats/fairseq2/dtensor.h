// SPDX-License-Identifier: Apache-2.0
// DTensors as torch 2.13 pickles them, for the optimizer files of FSDP2.
//
//   _rebuild_from_type_v2(_rebuild_wrapper_subclass, DTensor,
//     (DTensor, dtype, size, stride, 0, layout, device, requires_grad),
//     (None, {"_local_tensor": tensor, "_spec": DTensorSpec}))
//
// DTensorSpec has the mesh, the placements and the global shape. The hashes
// that torch caches in mesh and spec depend on the process, so they are None;
// torch computes them when needed.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::fairseq2 {

// The one-dimensional mesh of the data-parallel ranks that share a
// tensor-parallel rank's parameters: processes tp, tp + tp_size, …
struct Mesh {
  std::string device;  // "cuda"
  uint32_t tp_size = 1;
  uint32_t tp = 0;  // of this file
  uint32_t dp_size = 1;
  uint32_t dp = 0;  // of this file
};

// One mesh for all tensors of a file.
pickle::Id add_mesh(pickle::Document& document, const Mesh& mesh);

// A DTensor of that global shape whose local part is slots[slot], sharded along
// dimension 0 or replicated.
pickle::Id add_dtensor(pickle::Document& document, pickle::Id mesh, DType dtype,
                       const Shape& shape, bool replicated, uint64_t slot);

}  // namespace ckpt::fairseq2
