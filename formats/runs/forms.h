// SPDX-License-Identifier: Apache-2.0
// The folders that trainers take: where model and optimizer are in each, what
// its optimizer counts by. Private to this room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/adam.h"
#include "formats/runs/order.h"

namespace ckpt::runs {

enum class Grouping : uint8_t {
  kSource,  // the user's own, as the source has it
  kDecay,   // two: what decays, then biases and norms
  kOne,
  kEach,  // options of each parameter, no groups
};

struct Form {
  std::string_view trainer;
  bool sharded = false;  // DCP for any ranks, state by name
  // A file for each rank, in the model's order; all parameters are numbered,
  // with or without state.
  bool rank_files = false;
  std::string_view model_at;  // the folder of DCP
  std::string_view model_key;
  std::string_view optimizer_at;  // the folder of DCP, or the file
  std::string_view optimizer_key;
  Grouping grouping = Grouping::kSource;
  std::string_view scheduler;  // the file of its own; "": it is elsewhere
  std::string_view home;       // the folder of config.json and tokenizer
};

// The trainer whose step it is; "": nobody's.
std::string trainer_in(const Catalog& source);

// Throws unfaithful_error for trainers that are not written so.
const Form& find_form(const std::string& trainer, uint32_t ranks,
                      const std::string& source_trainer);

// The groups of a target, with all parameters that the source's have. Throws
// unfaithful_error where parameters whose options differ would share a group,
// or where an order is needed that nothing proves.
std::vector<AdamGroup> groups_for(const Form& form, const Adam& adam,
                                  const Catalog& source);

// Names in the order in which the model registers its parameters. Throws
// unfaithful_error where nothing proves it.
std::vector<std::string> module_order(const Form& form, const Catalog& source);

}  // namespace ckpt::runs
