// SPDX-License-Identifier: Apache-2.0
// --adapter: adds adapters to the weights of a base model.
#pragma once

#include "api/adapters.h"
#include "convert/options.h"

namespace CLI {
class App;
}

namespace ckpt::app {

struct AdapterOptions : library::Adapters {
  bool any() const { return !paths.empty(); }
};

void add_adapter_options(CLI::App& app, AdapterOptions& options);

// library::add_adapters and add_inside, with what they say as log lines.
void add_adapters(Catalog& base, AdapterOptions options,
                  const families::TranslateOptions& names);
void add_inside(Catalog& base, Catalog adapter, AdapterOptions options,
                const families::TranslateOptions& names);

}  // namespace ckpt::app
