// SPDX-License-Identifier: Apache-2.0
// Makes configurations follow the tensors that remain: config.json beside them,
// and args or params among the objects.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "ckpt/catalog.h"

namespace ckpt::library {

using ConfigTable = nlohmann::ordered_json;
// True if it changed the table.
using ConfigEdit = std::function<bool(ConfigTable& table)>;

// Makes a sidecar of a run's config.json that no reader asked for, and opens
// the objects: otherwise they would be carried unchanged.
void take_config(Catalog& catalog);

bool is_config_file(const Sidecar& sidecar);
// True for args or params that are a dict, or a Namespace with one.
bool is_config_object(const Object& object);

// The content; discarded if a file is not JSON. For a Namespace, its entries.
ConfigTable config_of(const Sidecar& sidecar);
ConfigTable config_of(const Object& object);

void edit_config(Sidecar& sidecar, const ConfigEdit& edit);
// A Namespace stays one: changed entries are replaced, none is removed.
void edit_config(Object& object, const ConfigEdit& edit);

}  // namespace ckpt::library
