// SPDX-License-Identifier: Apache-2.0
// Which rank keeps what.
//
//   block b               the rank that owns b
//   input embedding       the rank that owns block 0
//   final norm, head      the rank that owns the last block
//   head, if tied         that rank and the one that owns block 0
//   all else (vision …)   every rank
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/names.h"

namespace ckpt::modelopt {

// "0-3,8" -> {0, 1, 2, 3, 8}. Throws usage_error.
std::set<uint32_t> parse_blocks(std::string_view text);
// The same for several ranks: "0-3,8/4-7". A rank without blocks is empty: "".
std::vector<std::set<uint32_t>> parse_ranks(std::string_view text);

class Owners {
 public:
  // Even runs: the first (count mod ranks) ranks have one more block.
  static Owners even(uint64_t count, uint64_t ranks);
  // Each block on one rank at most. Throws usage_error for a block on two
  // ranks, or one that a model of `count` blocks lacks.
  static Owners given(std::string_view text, uint64_t count);

  uint64_t ranks() const { return ranks_; }
  std::optional<uint32_t> of_block(uint64_t block) const;
  // The ranks that keep a tensor, ascending; empty if no rank does.
  std::vector<uint32_t> of(const Place& place, bool tied) const;

 private:
  uint64_t ranks_ = 1;
  std::vector<std::optional<uint32_t>> owner_;  // by block
};

// The number of blocks in the whole model: what config.json says, or one more
// than the highest number among the names; 0 if no name is a block's.
uint64_t block_count(const Catalog& catalog, const Naming& naming,
                     const std::optional<Config>& config);

}  // namespace ckpt::modelopt
