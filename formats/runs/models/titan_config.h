// SPDX-License-Identifier: Apache-2.0
// What config.json says of a model that torchtitan trains, and where it says
// something else than torchtitan's model of that name does. torchtitan's steps
// have no configuration. Private to this room.
#pragma once

#include <cstdint>

#include "ckpt/catalog.h"
#include "formats/runs/models/titan_names.h"

namespace ckpt::runs::titan {

struct Config {
  const Model* model = nullptr;
  uint64_t queries = 0, keys = 0;  // heads
  uint64_t layers = 0;             // without those of multi-token prediction
  uint64_t experts = 0;            // 0: dense
  bool tied = false;
};

// Throws unfaithful_error without a config.json, and for models that are not
// known. Adds warnings to the catalog's problems for numbers that torchtitan's
// model has otherwise.
Config config_of(Catalog& source);

}  // namespace ckpt::runs::titan
