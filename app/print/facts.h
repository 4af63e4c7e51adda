// SPDX-License-Identifier: Apache-2.0
// Facts of models (convert/facts.h), as commands show and compare
// them.
#pragma once

#include <string>
#include <vector>

#include "app/print/json_writer.h"
#include "convert/facts.h"

namespace ckpt::app {

// A configuration that is damaged is told, and has no facts.
families::Facts known_facts(const Catalog& catalog);

// What both checkpoints say of their models, and not alike.
std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b);

// "norm_epsilon is 1e-06 (config.json rms_norm_eps) in the one, …"
std::string fact_text(const families::FactDifference& fact);

// {"kind": "fact", "name": …, "a": …, "b": …, "tensor": "", "message": …}
void write_fact(JsonWriter& json, const families::FactDifference& fact);

// Those that the model has, a line each: what is off is told by --json alone.
void print_facts(const families::Facts& facts);

// "facts": {name: {"value": …, "source": …}, …}
void write_facts(JsonWriter& json, const families::Facts& facts);

}  // namespace ckpt::app
