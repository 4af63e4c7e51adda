// SPDX-License-Identifier: Apache-2.0
// Numbers of an optimizer as parameters, where the order is known and the
// groups are not: which parameters stand in which group.
//
//   order   emb w1 b1 w2 b2 buffer          shapes of state
//   group 0 ── emb w1 w2 ──                 [53,12] [24,12] [12,24]
//   group 1 ──       b1 b2 ──               [24] [12]
//
// Each group is a part of the order, none shares a parameter with another, and
// what is left over is frozen, or a buffer. Only if there is exactly one way
// to do it, is it taken.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ckpt/box.h"
#include "formats/runs/order.h"

namespace ckpt::runs {

// The shape that the states of a parameter have; nothing: it has no state, or
// none with the parameter's shape, and any fits.
using Wanted = std::optional<Shape>;

enum class Ways : uint8_t { kNone, kOne, kMany, kTooMany };

struct Split {
  Ways ways = Ways::kNone;
  std::vector<std::vector<size_t>> groups;  // of parameters; if there is one
};

// `allowed(group, parameter)`: false where a rule forbids it; may be null.
Split only_split(std::span<const Parameter> order,
                 const std::vector<std::vector<Wanted>>& groups,
                 bool (*allowed)(size_t group, const Parameter&) = nullptr);

}  // namespace ckpt::runs
