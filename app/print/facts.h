// SPDX-License-Identifier: Apache-2.0
// Facts of models (convert/config/facts.h), for commands to show.
#pragma once

#include "app/print/json_writer.h"
#include "convert/config/facts.h"

namespace ckpt::app {

// {"kind": "fact", "name": …, "a": …, "b": …, "tensor": "", "message": …}
void write_fact(JsonWriter& json, const families::FactDifference& fact);

// The facts that a model has, one per line; only --json lists those that are
// off.
void print_facts(const families::Facts& facts);

// "facts": {name: {"value": …, "source": …}, …}
void write_facts(JsonWriter& json, const families::Facts& facts);

}  // namespace ckpt::app
