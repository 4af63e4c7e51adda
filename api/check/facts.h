// SPDX-License-Identifier: Apache-2.0
// Facts of models (convert/facts.h), as checks compare them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/engine.h"
#include "convert/facts.h"

namespace ckpt::library {

// A configuration that is damaged is told, and has no facts.
families::Facts known_facts(const Catalog& catalog, const Engine& engine);

// What both checkpoints say of their models, and not alike. What is nearly the
// same is told.
std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b,
                                                      const Engine& engine);

// "1e-06 (config.json rms_norm_eps) and 1e-05 (args norm_epsilon)"
std::string fact_text(const families::FactDifference& fact);

// The entries that a model's vocabulary has, if its configuration says so.
std::optional<uint64_t> vocabulary_of(const Catalog& catalog);

}  // namespace ckpt::library
