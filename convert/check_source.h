// SPDX-License-Identifier: Apache-2.0
// What of a source has to agree before it is written: the family that was named
// and config.json's, numbers and tensors, two configurations.
#pragma once

#include <vector>

#include "convert/translate.h"

namespace ckpt::families {

// Throws unfaithful_error for a --family that config.json says the model is
// not: names and shapes may fit and the numbers mean another model (norms plus
// one, scaled embeddings).
void check_type(const Catalog& source, const TranslateOptions& options,
                const Family& family);

// For a target that keeps transformers' names and cuts by the numbers of
// config.json: throws unfaithful_error if the tensors are not of these.
void check_numbers(const Catalog& source, const TranslateOptions& options);

// Throws unfaithful_error where the source's own configuration (args, …) and
// the config.json beside it, which goes along, are of two models; a warning for
// the one difference that fairseq2 0.4 writes itself.
std::vector<Problem> check_beside(Catalog& source,
                                  const TranslateOptions& options);

}  // namespace ckpt::families
