// SPDX-License-Identifier: Apache-2.0
// --adapter: adds adapters to the weights of a base model.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace CLI {
class App;
}

namespace ckpt::app {

struct AdapterOptions {
  std::vector<std::string> paths;
  std::vector<double> weights;  // none, or one for each path
  bool allow_nonfinite = false;
  bool any() const { return !paths.empty(); }
};

void add_adapter_options(CLI::App& app, AdapterOptions& options);

// `base` with transformers' names; adapters are added one after the other.
// Nothing is read: tensors that change become files that are computed as they
// are read (reshard/low_rank.h). `strict`: keys of adapter_config.json that are
// not known are refused.
void add_adapters(Catalog& base, const AdapterOptions& options, bool strict);

}  // namespace ckpt::app
