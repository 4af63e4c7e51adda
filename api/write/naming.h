// SPDX-License-Identifier: Apache-2.0
// Gives a source the names of its target's format.
#pragma once

#include <string>

#include "ckpt/ckpt.h"

namespace ckpt::library {

// The source in the dialect of `to_format`. A format with one dialect
// (megatron, meta, fairseq2 …) gets that. A container of any dialect keeps the
// source's, unless a family is named or the source is Meta's: then it gets
// transformers'. Errors name the options of `ckpt convert`.
Catalog into_dialect(Catalog source, const Naming& naming,
                     const std::string& to_format);

}  // namespace ckpt::library
