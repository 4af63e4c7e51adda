// SPDX-License-Identifier: Apache-2.0
// What the C interface's handles are, and what its calls share.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ckpt/adapter.h"
#include "ckpt/c.h"
#include "ckpt/ckpt.h"

struct ckpt_checkpoint {
  explicit ckpt_checkpoint(ckpt::Checkpoint opened,
                           ckpt::AdapterHold added = nullptr)
      : open(std::move(opened)), held(std::move(added)) {
    const auto& tensors = open.catalog().tensors;
    by_name.reserve(tensors.size());
    for (const ckpt::Tensor& tensor : tensors)
      by_name.emplace(tensor.name, &tensor);
  }
  const ckpt::Tensor* find(const std::string& name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  }

  const ckpt::Checkpoint open;
  const ckpt::AdapterHold held;  // what its sums are computed from
  // A walk over the tensors asks for each by its name.
  std::unordered_map<std::string_view, const ckpt::Tensor*> by_name;
};

struct ckpt_data {
  // Arrays of other libraries may share it.
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

namespace ckpt {

// Called in a handler. Sets `*error` and returns the exit status.
int report(char** error);

// Returns what `call` returns, or null, with `*error` set.
template <class Call>
auto guarded(char** error, Call&& call) -> decltype(call()) {
  if (error) *error = nullptr;
  try {
    return call();
  } catch (...) {
    report(error);
    return nullptr;
  }
}

inline std::string text_of(const char* text) { return text ? text : ""; }

// Its tensors' sources may be looked up late, so it has a copy of its own.
ckpt_checkpoint* changed(const ckpt_checkpoint& from,
                         const std::function<Catalog(Catalog)>& change);

}  // namespace ckpt
