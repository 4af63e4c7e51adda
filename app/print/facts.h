// SPDX-License-Identifier: Apache-2.0
// Facts of models (convert/facts.h), as commands show them.
#pragma once

#include "app/print/json_writer.h"
#include "convert/facts.h"

namespace ckpt::app {

// {"kind": "fact", "name": …, "a": …, "b": …, "tensor": "", "message": …}
void write_fact(JsonWriter& json, const families::FactDifference& fact);

// Those that the model has, a line each: what is off is told by --json alone.
void print_facts(const families::Facts& facts);

// "facts": {name: {"value": …, "source": …}, …}
void write_facts(JsonWriter& json, const families::Facts& facts);

}  // namespace ckpt::app
