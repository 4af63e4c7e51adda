// SPDX-License-Identifier: Apache-2.0
// ggml's blocks to numbers, and back for the types that one pass over a block
// makes. Both give the bits that the gguf package's quants.py gives.
//
// A NaN or an infinity in a scale becomes what arithmetic makes of it, as it
// does there. Who must not write such blocks looks at the numbers first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/ggml.h"

namespace ckpt::reshard {

// Null for what lib/ggml.h does not call decodes or encodes.
using GgmlDecode = void (*)(const std::byte* blocks, uint64_t count,
                            float* out);
using GgmlEncode = void (*)(const float* numbers, uint64_t count,
                            std::byte* out);
GgmlDecode ggml_decode(GgmlType type);
GgmlEncode ggml_encode(GgmlType type);

// Half of the power of two that MXFP4's scale stands for.
float ggml_e8m0_half(uint8_t code);

}  // namespace ckpt::reshard
