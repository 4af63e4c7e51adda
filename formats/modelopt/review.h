// SPDX-License-Identifier: Apache-2.0
// A source as ModelOpt would hold it: who owns what, the order of the model's
// modules, the head of a tied model.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/names.h"
#include "formats/modelopt/owners.h"

namespace ckpt::modelopt {

// What a layout and a source amount to.
struct Decision {
  const Naming* naming = nullptr;
  std::optional<Config> config;
  bool tied = false;
  bool blocks = false;  // block files, not rank shards
  Owners owners;

  // The ranks that keep a tensor; for block files there is one.
  std::vector<uint32_t> keepers(const Tensor& tensor) const {
    return owners.of(naming->place(tensor.name), tied);
  }
};

// Throws usage_error or unfaithful_error if the source can't be written that
// way.
Decision decide(const Catalog& source, const Layout& layout);

Catalog review(Catalog source, const Layout& layout);

}  // namespace ckpt::modelopt
