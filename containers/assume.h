// SPDX-License-Identifier: Apache-2.0
// Where payload is, as far as a dry run has to know.
//
// An index says where each item begins and ends; only the item itself shows
// where in it the elements are. A run opens all items before it plans
// (ckpt::locate). A dry run writes nothing and prints no offsets. Sizes and
// sums depend on boxes and dtypes alone (not on strides: a transposed tensor
// has as many bytes), and the index itself says that the bytes of each box fit
// into its item. So only the last item of each file is opened, to see that the
// files are there, whole, and of the kind that the index says; the others are
// assumed to be alike.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Instead of ckpt::locate, for a plan that is only shown. Returns the number of
// items that were not opened. Opens all of them if their bytes will be read
// (claims) or the format has no cheaper way.
uint64_t assume_places(Catalog& catalog);

}  // namespace ckpt::formats
