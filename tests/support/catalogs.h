// SPDX-License-Identifier: Apache-2.0
// Catalogs made by hand for the tests of the app room.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::test {

// A bf16 tensor in one piece at the start of file 0.
inline Tensor tensor(std::string name, Shape shape) {
  Tensor made;
  made.name = std::move(name);
  made.dtype = DType::bf16;
  made.shape = shape;
  made.pieces.push_back({.box = Box::whole(shape),
                         .flat = {},
                         .extent = {},
                         .transform = kNoTransform});
  return made;
}

inline Catalog catalog(std::vector<Tensor> tensors) {
  Catalog made;
  made.format = "torch";
  made.path = "model.pt";
  made.files.push_back({.path = "model.pt", .size = 4096});
  made.tensors = std::move(tensors);
  return made;
}

inline std::vector<std::string> names(const Catalog& catalog) {
  std::vector<std::string> list;
  for (const Tensor& tensor : catalog.tensors) list.push_back(tensor.name);
  return list;
}

}  // namespace ckpt::test
