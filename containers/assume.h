// SPDX-License-Identifier: Apache-2.0
// Where payload lies, as far as a dry run has to know.
//
// An index says where each item begins and ends; where in it the elements are,
// shows only the item. A run opens all of them before it plans
// (ckpt::locate). A dry run writes nothing and prints no offsets: sizes and
// sums depend on boxes and dtypes alone, and that the bytes of each box fit
// into its item the index says itself. (Not on strides either: a transposed
// tensor is as many bytes.) So one item of each file is opened, the last,
// to see that the files are there, whole, and of the kind that the index says;
// the others are taken to be like them.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// Instead of ckpt::locate, for a plan that is only shown. Returns the number of
// items that were not opened. Opens all where their bytes are going to be read
// (claims), or the format has no cheaper way.
uint64_t assume_places(Catalog& catalog);

}  // namespace ckpt::formats
