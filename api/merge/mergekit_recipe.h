// SPDX-License-Identifier: Apache-2.0
// What a configuration of mergekit says for one tensor after the other: each
// parameter is a number, a gradient over the layers of a slice, or a list of
// {filter, value} of which the first counts that is found in a tensor's name.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/merge.h"

namespace ckpt::mergekit {

// A parameter.
struct Setting {
  struct Rule {
    std::string filter;          // "": any tensor
    std::vector<double> values;  // one, or a gradient
  };
  std::vector<Rule> rules;
  bool plain = true;  // one number for all tensors

  // For a tensor of that name; t: from the first layer, 0, to the last, 1.
  std::optional<double> at(std::string_view tensor, double t) const;
};
using Settings = std::map<std::string, Setting, std::less<>>;

struct Source {
  size_t model = 0;  // in MergeFile::sources
  Settings settings;
};
struct Slice {
  uint64_t begin = 0, end = 0;  // layers; no end: all of them
  std::vector<Source> sources;
  Settings settings;
};

// What a configuration amounts to for one tensor after the other.
struct Recipe {
  std::string path;
  std::optional<MergeMethod> method;  // none: passthrough
  std::optional<size_t> base;
  size_t models = 0;  // sources
  std::vector<Slice> slices;
  Settings settings;

  bool has_deltas() const {
    using enum MergeMethod;
    return method == kTaskArithmetic || method == kTies ||
           method == kDareLinear || method == kDareTies;
  }
  // True if all tensors have the same numbers.
  bool is_plain() const;
  // Throws usage_error for a parameter that has no value for the tensor,
  // unfaithful_error if the slices are not the whole model.
  MergeNumbers numbers(const std::string& tensor, std::optional<uint32_t> layer,
                       uint64_t layers) const;

 private:
  const Slice& slice_of(const std::string& tensor,
                        std::optional<uint32_t> layer, uint64_t layers) const;
};

}  // namespace ckpt::mergekit
