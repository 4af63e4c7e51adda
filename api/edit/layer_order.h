// SPDX-License-Identifier: Apache-2.0
// --layers 0-11,4-15: a deeper model of repeated layers. Where a list names a
// layer twice, or one after a later one, layers are counted anew in its order:
//
//   source layer   0 1 2 1 2 3
//   becomes        0 1 2 3 4 5
//
// An ascending list leaves numbers in names as they are (layers.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/edits.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

bool counts_anew(const std::vector<uint32_t>& order);

// Tensors, rows of stacked ones, optimizer state and objects in this order;
// configurations follow. No byte moves. Returns what was done. Throws
// unfaithful_error where names don't tell which layers are meant.
std::string order_layers(Catalog& catalog, const std::vector<uint32_t>& order,
                         Edits& edits);

// Counts, and lists with one value for each layer. Throws unfaithful_error for
// a kind of layer that follows from its number and would be another.
void follow_order(Catalog& catalog, const std::vector<uint32_t>& order);

}  // namespace ckpt::library
