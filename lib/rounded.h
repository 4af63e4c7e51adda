// SPDX-License-Identifier: Apache-2.0
// A weight in use whose fp32 main weight is the model's tensor of its name: it
// is not written, since it is that, rounded. Its bytes have to show it, as do
// those of main weights that stand beside their weights
// (reshard/prove/prove.h).
#pragma once

#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt {

inline constexpr std::string_view kRoundedWeight =
    "the fp32 main weight is the model's";

inline bool is_rounded_weight(const Redundant& one) {
  return one.why == kRoundedWeight;
}

}  // namespace ckpt
