// SPDX-License-Identifier: Apache-2.0
// --layers: keeps some of a model's layers.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/edit/layer_place.h"
#include "api/edit/towers.h"
#include "api/edits.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// No model has more: a bound on what is read or typed.
inline constexpr uint32_t kMostLayers = 100'000;

// "0-2,1-3" -> {0, 1, 2, 1, 2, 3}: as it was typed.
std::vector<uint32_t> parse_layer_order(const std::string& text);

// "last:4": how many of the last layers are kept, and counted from 0; nothing
// for a list.
std::optional<uint32_t> last_layers(const std::string& text);
// Throws usage_error for what is neither.
void check_layers(const std::string& text);

// Keeps only these layers' rows of stacked tensors, as rows 0, 1, … of a
// smaller tensor. Objects on a grid of layers (_extra_state) follow. No byte
// moves. Returns what to report; "" if nothing changed.
std::string keep_rows(Catalog& catalog, const std::set<uint32_t>& layers,
                      const LayerCount& count, Edits& edits);

// Sets the number of layers in the configurations, if the first ones are kept:
// num_hidden_layers, and lists with one value per layer.
void follow_layers(Catalog& catalog, const std::set<uint32_t>& layers);

// Layers that predict further tokens (MTP): DeepSeek numbers them after the
// last layer, and a list of layers may leave them out.
bool predicts(const Catalog& catalog);
// Makes the configurations say that there are none.
void drop_prediction(Catalog& catalog);

}  // namespace ckpt::library
