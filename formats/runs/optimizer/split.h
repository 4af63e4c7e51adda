// SPDX-License-Identifier: Apache-2.0
// Turns an optimizer's numbers into parameters if the order is known but the
// groups are not: finds which parameters are in which group.
//
//   order   emb w1 b1 w2 b2 buffer          shapes of state
//   group 0 ── emb w1 w2 ──                 [53,12] [24,12] [12,24]
//   group 1 ──       b1 b2 ──               [24] [12]
//
// Each group is a part of the order, no two share a parameter, and what is left
// over is frozen, or a buffer. A split is accepted only if it is the only one
// possible.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ckpt/box.h"
#include "formats/runs/optimizer/order.h"

namespace ckpt::runs {

// The shape of a parameter's states. Nothing: it has no state, or none with the
// parameter's shape, so any fits.
using Wanted = std::optional<Shape>;

enum class Ways : uint8_t { kNone, kOne, kMany, kTooMany };

struct Split {
  Ways ways = Ways::kNone;
  std::vector<std::vector<size_t>> groups;  // of parameters; if kOne
};

// `allowed(group, parameter)` returns false if a rule forbids it; may be null.
Split only_split(std::span<const Parameter> order,
                 const std::vector<std::vector<Wanted>>& groups,
                 bool (*allowed)(size_t group, const Parameter&) = nullptr);

}  // namespace ckpt::runs
