// SPDX-License-Identifier: Apache-2.0
// What the options of a merge say: which sources are terms, in which order, and
// how they are taken together.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ckpt/merge.h"
#include "lib/decoding.h"
#include "reshard/sources/combine.h"

namespace ckpt::library {

// Throws usage_error for options that contradict each other.
class Recipe {
 public:
  Recipe(size_t sources, const MergeOptions& options);

  bool any() const { return options_.method.has_value(); }
  // The sources, the base of deltas first.
  const std::vector<size_t>& order() const { return order_; }
  // The source whose names, objects and files the result has: the last of those
  // whose optimizers are merged, for a step is of one moment; else the first.
  size_t frame() const;
  // Of a tensor with that name.
  Combination combination(const std::string& tensor) const;
  reshard::Measure measure() const;
  bool is_measured() const {
    const reshard::Measure wanted = measure();
    return wanted.what != reshard::Measure::What::kNothing || wanted.rescale;
  }
  std::string text() const;
  // "the mean of 3 sources", "ties"
  std::string name() const;

 private:
  void check_optimizer() const;
  void check_weights(size_t models) const;
  void check_densities(size_t models) const;
  void set_decay(double decay, size_t models);
  MergeMethod method() const { return *options_.method; }
  bool deltas() const;
  bool normal() const;

  const MergeOptions options_;
  std::vector<size_t> order_;
  std::vector<double> weights_;  // of the models, without a base
  double divisor_ = 1;
};

}  // namespace ckpt::library
