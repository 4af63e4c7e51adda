// SPDX-License-Identifier: Apache-2.0
// Divides the work: deals out the items of a plan by bytes. Pure.
//
//   items   | 0      | 1      | 2      | 3      | 4  |      front to back
//   ranks   |   0       |    1       |     2         |      equal bytes
//
// Each rank gets one run of items, so that it sweeps its part of the sources as
// one process would. If a cut falls into an item, both sides get a part of it;
// such parts have no number, because a journal counts only whole items.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/work.h"

namespace ckpt::ranks {

// `items` in the order of cut_items. A part of a gather has the range of its
// cut dimension (cut_dimension) in begin and end; otherwise they are as in
// Item. Items of one compressed file stay together, because a stream is
// unpacked from its start.
std::vector<std::vector<reshard::Item>> split(const reshard::Plan& plan,
                                              const Catalog& source,
                                              std::vector<reshard::Item> items,
                                              uint32_t ranks);

// Bytes of payload that an item reads.
uint64_t bytes_of(const reshard::Plan& plan, const reshard::Item& item);

// The dimension whose steps are furthest apart in the source, so that parts
// read different ranges.
size_t cut_dimension(const reshard::Gather& gather);

}  // namespace ckpt::ranks
