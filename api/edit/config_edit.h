// SPDX-License-Identifier: Apache-2.0
// Configurations that follow what is left of a model: config.json beside it,
// and args or params among its values.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "ckpt/catalog.h"

namespace ckpt::library {

using ConfigTable = nlohmann::ordered_json;
// True if it changed the table.
using ConfigEdit = std::function<bool(ConfigTable& table)>;

// A run's config.json that no reader asked for becomes a sidecar: it would be
// carried as it is.
void take_config(Catalog& catalog);

bool is_config_file(const Sidecar& sidecar);
// args or params that are a dict, or a Namespace with one.
bool is_config_object(const Object& object);

// Their content; discarded if a file is no JSON. An object's is the Namespace's
// entries where it is one.
ConfigTable config_of(const Sidecar& sidecar);
ConfigTable config_of(const Object& object);

void edit_config(Sidecar& sidecar, const ConfigEdit& edit);
// A Namespace stays one: entries that changed are replaced in it, none is taken
// away.
void edit_config(Object& object, const ConfigEdit& edit);

}  // namespace ckpt::library
