// SPDX-License-Identifier: Apache-2.0
// A strided tensor as its pickle describes it: the arguments of torch's rebuild
// functions, seen through their wrappers. Nothing is verified here;
// formats/torch does that against the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// ("storage", class, key, location, numel[, view])
struct StorageView {
  Id storage_class = kNoId;  // a kGlobal
  std::string key;
  Id location = kNoId;
  int64_t numel = 0;
};
std::optional<StorageView> storage_view(const Document& document,
                                        Id persistent);

// The value that a legacy file's persistent id ("module", class, …) stands for;
// else the id itself.
Id resolve_module(const Document& document, Id id);

struct TensorView {
  StorageView storage;
  std::string dtype;
  int64_t offset = 0;  // in elements
  std::vector<int64_t> size;
  std::vector<int64_t> stride;
  bool requires_grad = false;
  bool parameter = false;
  std::string tensor_class;  // "torch.Tensor"; "" if none is given
  Id attributes = kNoId;
  Id metadata = kNoId;
  Id quantizer = kNoId;
};
std::optional<TensorView> tensor_view(const Document& document, Id id);

// The integers of a tuple, list or torch.Size.
std::optional<std::vector<int64_t>> int_list(const Document& document, Id id);
// The elements of a tuple, list or torch.Size; nullopt for anything else.
std::optional<std::span<const Id>> sequence(const Document& document, Id id);

}  // namespace ckpt::pickle
