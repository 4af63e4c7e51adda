// SPDX-License-Identifier: Apache-2.0
// What must agree in a source before it is written: the named family and
// config.json's, numbers and tensors, two configurations.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/options.h"

namespace ckpt::families {

// Throws unfaithful_error for a --family that config.json contradicts: names
// and shapes may fit while the numbers mean another model (norms plus one,
// scaled embeddings).
void check_type(const Catalog& source, const TranslateOptions& options,
                const Family& family);

// Throws unfaithful_error for a family other than the one that the source's own
// configuration names: args that ckpt wrote, model.yaml, OLMo-core's.
void check_named(const Catalog& source, const TranslateOptions& options,
                 const Family& family);

// For a target that keeps transformers' names and cuts by the numbers of
// config.json: throws unfaithful_error if the tensors contradict them.
void check_numbers(const Catalog& source, const TranslateOptions& options);

// True for a file that was named by itself: model-00001-of-00007.safetensors.
bool is_one_of_several(const std::string& path);

// Throws unfaithful_error if the source's own configuration (args, …) and the
// config.json carried beside it describe two models; warns of the one
// difference that fairseq2 0.4 writes itself.
std::vector<Problem> check_beside(Catalog& source,
                                  const TranslateOptions& options);

}  // namespace ckpt::families
