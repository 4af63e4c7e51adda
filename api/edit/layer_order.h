// SPDX-License-Identifier: Apache-2.0
// --layers 0-11,4-15: a deeper model of repeated layers. If a list repeats a
// layer or is not ascending, layers are renumbered in its order:
//
//   source layer   0 1 2 1 2 3
//   becomes        0 1 2 3 4 5
//
// An ascending list leaves the numbers in names unchanged (layers.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "api/edit/towers.h"
#include "api/edits.h"
#include "ckpt/catalog.h"
#include "convert/config/facts.h"

namespace ckpt::library {

// Keys of a model's depth, and of an encoder's and a decoder's own: a decoder
// alone has those of both.
inline constexpr std::string_view kDepths[] = {
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_blocks"};
inline constexpr std::string_view kStackDepths[] = {
    "encoder_num_layers",
    "decoder_num_layers",
    "decoder_layers",
    "encoder_layers",
    "num_decoder_layers",
    "num_encoder_layers",
    "decoder_num_hidden_layers",
    "encoder_num_hidden_layers"};

bool counts_anew(const std::vector<uint32_t>& order);

// Puts tensors, rows of stacked ones, optimizer state and objects into this
// order; configurations follow. No byte moves. Returns what was done. Throws
// unfaithful_error if names don't say which layers are meant.
std::string order_layers(Catalog& catalog, const std::vector<uint32_t>& order,
                         const LayerCount& count, Edits& edits);

// Changes counts, and lists with one value per layer. Throws unfaithful_error
// if a layer's kind follows from its number and would change.
void follow_order(Catalog& catalog, const std::vector<uint32_t>& order);
// The same where it can be done: else configurations stay as they were, and
// what hinders it is returned.
std::string try_order(Catalog& catalog, const std::vector<uint32_t>& order);
// One configuration, which `path` is the file of; true if it says how many
// layers there are.
bool follow_order(nlohmann::ordered_json& config,
                  const std::vector<uint32_t>& order, const std::string& path);
// Throws unfaithful_error if a fact of layer i is now another than that of
// layer order[i] in `before`.
void check_kinds(const Catalog& catalog, const families::Facts& before,
                 const std::vector<uint32_t>& order);

}  // namespace ckpt::library
