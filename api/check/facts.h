// SPDX-License-Identifier: Apache-2.0
// Facts of models (convert/config/facts.h), for checks that compare them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/engine.h"
#include "convert/config/facts.h"

namespace ckpt::library {

// Reports a damaged configuration, which has no facts.
families::Facts known_facts(const Catalog& catalog, const Engine& engine);

// The facts that both checkpoints state and that differ. Near misses are
// reported.
std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b,
                                                      const Engine& engine);

// "1e-06 (config.json rms_norm_eps) and 1e-05 (args norm_epsilon)"
std::string fact_text(const families::FactDifference& fact);

// A head that differs from the embedding although the configuration ties them:
// loaders disagree about which of them is the head. Reads both tensors.
std::optional<Problem> unlike_tied_head(const Catalog& catalog,
                                        const Engine& engine);

// The size of the model's vocabulary, if its configuration says it.
std::optional<uint64_t> vocabulary_of(const Catalog& catalog);

}  // namespace ckpt::library
