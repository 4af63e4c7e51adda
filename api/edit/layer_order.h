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
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "api/edit/towers.h"
#include "api/edits.h"
#include "ckpt/catalog.h"
#include "convert/facts.h"

namespace ckpt::library {

bool counts_anew(const std::vector<uint32_t>& order);

// Tensors, rows of stacked ones, optimizer state and objects in this order;
// configurations follow. No byte moves. Returns what was done. Throws
// unfaithful_error where names don't tell which layers are meant.
std::string order_layers(Catalog& catalog, const std::vector<uint32_t>& order,
                         const LayerCount& count, Edits& edits);

// Counts, and lists with one value for each layer. Throws unfaithful_error for
// a kind of layer that follows from its number and would be another.
void follow_order(Catalog& catalog, const std::vector<uint32_t>& order);
// The same where it can be done: else configurations stay as they were, and
// what hinders it is returned.
std::string try_order(Catalog& catalog, const std::vector<uint32_t>& order);
// One configuration, which `path` is the file of; true if it says how many
// layers there are.
bool follow_order(nlohmann::ordered_json& config,
                  const std::vector<uint32_t>& order, const std::string& path);
// What the ledger of facts has by layer is what it was: throws
// unfaithful_error if layer i of now is not as layer order[i] of `before`.
void check_kinds(const Catalog& catalog, const families::Facts& before,
                 const std::vector<uint32_t>& order);

}  // namespace ckpt::library
