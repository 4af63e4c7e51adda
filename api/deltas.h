// SPDX-License-Identifier: Apache-2.0
// How what `diff --write` made is told from a model. A difference has the name
// of A among its header's metadata, and keeps it in any container:
//
//   __metadata__   ckpt.delta_of   "step_4000", or "difference"
//
// A lossless delta (api/delta/lossless.h) is known by its format. A LoRA needs
// no mark.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::library {

inline constexpr std::string_view kDeltaOf = "ckpt.delta_of";

// The mark for a difference from the checkpoint at this path.
std::string delta_mark(const std::string& path);

// True for B - A: its tensors are no weights of a model.
bool is_delta(const Catalog& catalog);
// Takes the mark off: what was added to a model is one again.
void drop_delta_mark(Catalog& catalog);

// True for a lossless delta that was opened as the container it is in.
bool is_lossless_delta(const Catalog& catalog);

// "a difference of two checkpoints (B - step_4000), not a model"; "" for what
// is neither form.
std::string delta_text(const Catalog& catalog);

}  // namespace ckpt::library
