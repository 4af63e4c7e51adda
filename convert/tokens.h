// SPDX-License-Identifier: Apache-2.0
// Tokens that need more rows than a vocabulary has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

// What of generation_config.json and of a tokenizer's files counts tokens from
// `rows` on, a sentence for each file. `all`: a tokenizer's whole vocabulary is
// read, which takes a while; else the tokens that tokenizer_config.json adds.
std::vector<std::string> tokens_past(const Catalog& catalog, uint64_t rows,
                                     bool all);

}  // namespace ckpt::families
