// SPDX-License-Identifier: Apache-2.0
// --adapter: adds adapters to the weights of a base model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/adapter.h"

namespace CLI {
class App;
}

namespace ckpt::app {

struct AdapterChoice {
  std::vector<std::string> paths;
  std::vector<double> weights;  // none, or one for each path
  std::optional<double> alpha;
  bool allow_nonfinite = false;

  bool any() const { return !paths.empty(); }
};

void add_adapter_options(CLI::App& app, AdapterChoice& options);

// Throws usage_error for other numbers of weights than of paths.
std::vector<AdapterUse> uses_of(const AdapterChoice& choice);
// With log lines of what there is to say about each.
AdapterOptions library_options(const AdapterChoice& choice, Naming naming);

}  // namespace ckpt::app
