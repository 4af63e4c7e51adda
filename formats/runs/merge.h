// SPDX-License-Identifier: Apache-2.0
// Merges the catalogs of several containers: files, pieces and ties get new
// numbers; names are up to the caller.
#pragma once

#include <span>

#include "ckpt/catalog.h"

namespace ckpt::runs {

class Merger {
 public:
  explicit Merger(Catalog& into) : into_(into) {}

  // Appends everything in `part` except its sidecars, skeleton and topology;
  // returns the index of its first tensor. Leaves out problems of `dropped`
  // kinds: what one file of several lacks.
  size_t add(Catalog part, std::span<const std::string_view> dropped = {});

 private:
  Catalog& into_;
};

}  // namespace ckpt::runs
