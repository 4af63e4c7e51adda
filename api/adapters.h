// SPDX-License-Identifier: Apache-2.0
// Adds adapters to the weights of a base model.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/options.h"
#include "formats/peft/adapter.h"
#include "reshard/made.h"

namespace ckpt::library {

struct Adapters {
  std::vector<std::string> paths;
  std::vector<double> weights;   // none, or one for each path
  std::optional<double> alpha;   // in the place of what the files say
  bool allow_nonfinite = false;  // values and sums
  bool strict = false;  // keys of adapter_config.json that are not known
  // Called with what there is to say about each.
  std::function<void(const Problem&)> note = {};
};

// What the changed tensors are computed from; it must outlive their catalog.
struct Added {
  std::list<peft::Adapter> adapters;
  std::list<std::unique_ptr<reshard::Made>> made;
};

// `base` with transformers' names, or with its own, if the adapters have those;
// adapters are added one after the other. Nothing is read but the adapters:
// tensors that change become files that are computed as they are read
// (reshard/low_rank.h). Throws unfaithful_error for what doesn't fit.
void add_adapters(Catalog& base, const Adapters& adapters,
                  const families::TranslateOptions& options, Added& added);

// The same for one that was in the base itself (convert/adapter_inside.h).
void add_inside(Catalog& base, Catalog adapter, const Adapters& adapters,
                const families::TranslateOptions& options, Added& added);

}  // namespace ckpt::library
