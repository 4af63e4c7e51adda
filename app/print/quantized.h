// SPDX-License-Identifier: Apache-2.0
// Quantized weights, for `inspect`.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/quantized/dequantize.h"

namespace ckpt::app {

// The catalog's quantized weights; none if they are damaged or unknown, because
// inspect shows those checkpoints too.
std::vector<families::LogicalWeight> quantized_of(const Catalog& catalog);

// "40 weights: 38 fp8 (8 bits, 128x128), 2 fp8 (8 bits, channel)"; "" of none.
// Codes that no rule knows are named and counted, too.
std::string quantized_text(const Catalog& catalog);

}  // namespace ckpt::app
