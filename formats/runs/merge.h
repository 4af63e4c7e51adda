// SPDX-License-Identifier: Apache-2.0
// Catalogs of several containers as one: files, pieces and ties get new
// numbers, names are the caller's business.
#pragma once

#include <span>

#include "ckpt/catalog.h"

namespace ckpt::runs {

class Merger {
 public:
  explicit Merger(Catalog& into) : into_(into) {}

  // Moves everything of `part` but its sidecars, skeleton and topology to the
  // end; returns the index of its first tensor. Problems of `dropped` kinds
  // are left out: what one file of several lacks.
  size_t add(Catalog part, std::span<const std::string_view> dropped = {});

 private:
  Catalog& into_;
};

}  // namespace ckpt::runs
