// SPDX-License-Identifier: Apache-2.0
// The state dicts of a file that has several, for `inspect`.
#pragma once

#include <string>

#include "app/print/json_writer.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

// "policy 19.6 K, ref 19.6 K (--part takes one)"; "" of one alone.
std::string models_text(const Catalog& catalog);

// "models", if there are several.
void write_models(JsonWriter& json, const Catalog& catalog);

}  // namespace ckpt::app
