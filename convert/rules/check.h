// SPDX-License-Identifier: Apache-2.0
// Does a model of hf fit its family? Every tensor by its name and shape, with
// nothing left over: what a conversion would need.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/rules/instances.h"
#include "convert/rules/mismatches.h"

namespace ckpt::families {

using Shapes = std::map<std::string, Shape, std::less<>>;

struct DialectCheck {
  std::string dialect;
  size_t used = 0;                   // tensors of hf
  size_t made = 0;                   // tensors of the dialect
  std::vector<std::string> numbers;  // Numbers::used()
  std::vector<Finding> findings;
};

// `tensors` by their names in the file. A missing number is a finding, too.
// `hf_alone`: nothing will be made of them, so what the dialect can't say about
// the model is no finding.
DialectCheck check_dialect(const Numbers& numbers, const Shapes& tensors,
                           bool hf_alone = false);

// The shape that a rule gives its tensor, from the shapes that it is made from.
// Throws unfaithful_error for shapes that do not go together or contradict the
// model's numbers.
Shape shape_of(const Instance& instance, const Numbers& numbers,
               const std::vector<Shape>& sources);

// In messages about an embedding or head, before the rows that it should have.
inline constexpr std::string_view kVocabularyHas = ", the vocabulary has ";

// True for a dialect with rules for every model of a family. llama.cpp's
// architectures have fewer: other model types, dense layers among experts.
bool covers_family(const Dialect& dialect);

}  // namespace ckpt::families
