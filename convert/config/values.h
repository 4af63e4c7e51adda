// SPDX-License-Identifier: Apache-2.0
// Where a checkpoint keeps the numbers of its model.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "models/numbers.h"

namespace ckpt::families {

// A configuration and where it was found.
struct Values {
  Json values = Json::object();
  std::string source;    // "config.json", "args (common.pt)"; "" if none
  std::string family{};  // model.yaml's model_family
  // Keys of a file from which these were made.
  std::vector<std::string> unknown{};
  // What a trainer's names depend on and config.json has no word for.
  Json told{};
  // Keys that the file has in other words, and those.
  std::map<std::string, std::string> written{};
};
// What a checkpoint says about its model: config.json or params.json beside it,
// Megatron's args, model.yaml; of a trainer's own (trainer.h) the
// config.json that it amounts to. Without one, `source` is empty; throws
// input_error if it is damaged, unfaithful_error for one that amounts to none.
Values values_of(const Catalog& catalog, std::string_view side);
// config.json: a sidecar, or beside the checkpoint.
std::optional<Sidecar> config_sidecar(const Catalog& catalog);
// From a file of that kind: --config-from.
Values values_of_file(const std::string& path, std::string_view side);

// True for what ModelOpt wrote: a tied output layer is in it twice.
bool repeats_tied_head(const Catalog& catalog);
// The base of rotary frequencies; 10000 if the checkpoint does not say it.
double theta_of(const Catalog& catalog);

}  // namespace ckpt::families
