// SPDX-License-Identifier: Apache-2.0
// Gives the source as many vocabulary rows as the target's ranks need.
//
//   | true rows | padding |      multiple of make_vocab_size_divisible_by * tp
//   | true rows | pad | zeros |  more ranks: zeros are appended
//   | true rows | |              fewer: padding is cut, real rows never
#pragma once

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Refuses sources of other formats whose tensors are not named like modules:
// stacked layers, other dialects, an optimizer from none of Megatron's formats.
void check_names(const Catalog& catalog);

// Changes shapes and pieces of word embeddings and output layers, and of their
// optimizer state.
void fit_vocabulary(Catalog& catalog, const Facts& facts, uint64_t tp);

}  // namespace ckpt::megatron
