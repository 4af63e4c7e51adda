// SPDX-License-Identifier: Apache-2.0
// --quantize: turns weights into fp8 codes and block scales, as DeepSeek and
// Qwen publish them.
//
//   a.weight (bf16 [r, c]) ─► a.weight (f8_e4m3 [r, c])
//                             a.weight_scale_inv (f32 [r/128, c/128], rounded
//                             up)
#pragma once

#include "ckpt/catalog.h"

namespace ckpt::families {

// Expects transformers' names and located extents. Norms, biases, embeddings,
// heads, routers and towers stay as they are; config.json gets a
// quantization_config that names them. Throws unfaithful_error if there is no
// config.json, or if weights are already quantized or stacked.
void quantize_fp8(Catalog& catalog);

}  // namespace ckpt::families
