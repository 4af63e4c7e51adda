// SPDX-License-Identifier: Apache-2.0
// Value tree -> pickle, protocol 2, using the opcodes that
// torch.load(weights_only=True) accepts wherever the values allow it.
#pragma once

#include <string>

#include "lib/pickle/value.h"

namespace ckpt::pickle {

// Values referenced more than once are memoized, cycles included.
std::string encode(const Document& document, Id root);
inline std::string encode(const Document& document) {
  return encode(document, document.root());
}

}  // namespace ckpt::pickle
