// SPDX-License-Identifier: Apache-2.0
// How ranks share a parameter where neither its file nor a table says it: as
// the sizes of the whole, which follow from the args, leave one way.
//
//   key_value, 2 ranks, args: 32 heads, 8 groups, 128 channels, hidden 4096
//     [1024, 4096] on each: 2 * 8 * 128 = 2048 rows, so rows are cut
//     [2048, 4096] on each: all of them, so each has the whole
//     without the number of groups: either, so it is not known
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// For the names of GPT's modules, old and new. kUnknown if the sizes fit no
// way, or several, or contradict what the module does with its ranks.
TpRule rule_by_sizes(std::string_view name, const Shape& local, uint64_t ranks,
                     const Facts& facts);

// Of a model without args whose checkpoint_version is below 2: when there were
// those, all of Megatron-LM's models were GPT-2's, so shapes say the rest of
// its args but for the number of heads. Empty for any other.
nlohmann::json args_of_shapes(const Catalog& catalog);

}  // namespace ckpt::megatron
