// SPDX-License-Identifier: Apache-2.0
// A source under the names of the format that it goes to.
#pragma once

#include <string>

#include "ckpt/ckpt.h"

namespace ckpt::library {

// The source as the dialect of `to_format` has it. A format of one dialect
// (megatron, meta, fairseq2 …) gets that; a container of any keeps the
// source's, unless a family is named or the source is Meta's: then it gets that
// of transformers. Errors name the options of `ckpt convert`.
Catalog into_dialect(Catalog source, const Naming& naming,
                     const std::string& to_format);

}  // namespace ckpt::library
