// SPDX-License-Identifier: Apache-2.0
// The model that an adapter is of: its modules and its numbers.
#pragma once

#include <memory>

#include "ckpt/catalog.h"
#include "convert/config/values.h"
#include "convert/options.h"
#include "models/family.h"

namespace ckpt::families {

// View::into without a grid: factors are read by rows.
inline constexpr uint64_t kAnyPieces = UINT64_MAX;

struct AdapterBase {
  const Catalog* model = nullptr;        // null: its weights are not at hand
  std::shared_ptr<const Family> family;  // null: unknown
  Values values;                         // config.json
  Overrides set;
};

// Of a model with transformers' names, or with its own.
AdapterBase base_of(const Catalog& model, const TranslateOptions& options);
// Of --config-from; without values if it is not given.
AdapterBase base_of_config(const Catalog& adapter,
                           const TranslateOptions& options);

}  // namespace ckpt::families
