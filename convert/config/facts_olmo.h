// SPDX-License-Identifier: Apache-2.0
// OLMo-core's configuration, as the ledger's expressions read and write it:
//
//   model.block                       one block for all layers
//        .sequence_mixer.rope         theta, scaling {_CLASS_ …}
//        .sequence_mixer.sliding_window {pattern [4096, 4096, 4096, -1], …}
//   model.block_overrides {"3": …}    the layers whose block is another: those
//                                     without a window scale their rope
#pragma once

#include "convert/config/facts.h"

namespace ckpt::families {

// Adds the names that expressions use besides those in the file: mixer, rope,
// window, rope_scaled, and odd (what no other dialect can say).
void prepare_olmo(Json& values);

// Adds the windows and the scaling to a configuration made from the family's
// table.
void complete_olmo(const Facts& facts, Json& config);

}  // namespace ckpt::families
