// SPDX-License-Identifier: Apache-2.0
// A base with an adapter in it that is not added yet: the state dict of a live
// model.
//
//   base_model.model.M.q_proj.base_layer.weight, .lora_A.default.weight
//   decoder.layers.0.….linear_qkv.to_wrap.weight, .adapter.linear_in.weight
#pragma once

#include <optional>

#include "ckpt/catalog.h"

namespace ckpt::families {

bool has_adapter_inside(const Catalog& source);

// Takes the adapter out of the source, whose names are then those of the base.
// An optimizer's state goes with neither: it is the adapter's, by its own
// names.
Catalog take_adapter(Catalog& source);

}  // namespace ckpt::families
