// SPDX-License-Identifier: Apache-2.0
// Which tensors of a source take part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/edits.h"
#include "app/edit/layers.h"
#include "app/options/options.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

struct Selection {
  uint64_t kept = 0;
  uint64_t dropped = 0;
  uint64_t dropped_bytes = 0;
  // "--exclude '*.bias': 32 of 291 tensors (1.0 MiB) left out"
  std::vector<std::string> notes;
  // Not empty: layers are counted anew in what remains.
  std::string warning;
  library::Edits edits;
};

// Removes the tensors that the options leave out, and the objects that match
// --exclude. What was dropped, and by which option, is in the result and in
// catalog.assumptions. An
// unfaithful_error if a pattern or a layer matches nothing, or if nothing
// remains.
Selection select(Catalog& catalog, const SelectOptions& options);

// Of two checkpoints that are compared: a pattern has to match something in
// one of them.
void select_both(Catalog& a, Catalog& b, const SelectOptions& options);

}  // namespace ckpt::app
