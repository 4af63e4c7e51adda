// SPDX-License-Identifier: Apache-2.0
// Does a model of hf fit its family? Every tensor by its name and shape, with
// nothing left over: what a conversion would need.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/instances.h"

namespace ckpt::families {

using Shapes = std::map<std::string, Shape, std::less<>>;

struct Finding {
  std::string kind;    // unknown, missing, doubled, misshapen, number
  std::string tensor;  // of hf; of the dialect where it says so
  std::string message;
  std::string hint;
};

struct DialectCheck {
  std::string dialect;
  size_t used = 0;                   // tensors of hf
  size_t made = 0;                   // tensors of the dialect
  std::vector<std::string> numbers;  // Numbers::used()
  std::vector<Finding> findings;
};

// `tensors` by their names in the file. A missing number is a finding, too.
DialectCheck check_dialect(const Numbers& numbers, const Shapes& tensors);

// The shape that a rule gives its tensor, from the shapes that it is made from.
// Throws unfaithful_error for shapes that do not go together or contradict the
// model's numbers.
Shape shape_of(const Instance& instance, const Numbers& numbers,
               const std::vector<Shape>& sources);

}  // namespace ckpt::families
