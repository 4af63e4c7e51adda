// SPDX-License-Identifier: Apache-2.0
// Two checkpoints, tensor by tensor, whatever their topologies.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/options/options.h"
#include "ckpt/catalog.h"

namespace ckpt::app {

// How far the elements of two tensors are apart.
struct Distance {
  uint64_t elements = 0;
  uint64_t differing = 0;
  double max_abs = 0;  // |a - b|; inf if only one of a pair is finite
  double max_rel = 0;  // |a - b| / |b|
};

// What a tensor is on one of two sides.
struct Side {
  DType dtype;
  Shape shape;
};

struct Difference {
  // only_in_a, only_in_b, dtype, shape, values, arrangement, object; replica:
  // copies within one of the two differ; padding: one has more rows at the end,
  // all of them zero; tied: one has a tensor a second time
  std::string kind;
  std::string tensor;
  std::string message;
  std::optional<Side> a = {}, b = {};  // where the tensor is
  std::optional<Distance> distance = {};
};

// True for what is no difference between two models: padding, tied.
bool is_note(const Difference& difference);

struct CompareOptions {
  double rtol = 0;
  double atol = 0;
  bool numeric = false;   // --rtol or --atol was given: values may differ so
                          // much, and dtypes may differ
  bool objects = false;   // compare values that are no tensors too
  bool describe = false;  // say how far values are apart
  bool arrangements = false;  // and which rearrangement makes them equal
  uint64_t vocabulary = 0;    // entries that are in use, if known
};

struct Comparison {
  std::vector<Difference> differences;
  uint64_t tensors = 0;  // compared on both sides
  uint64_t bytes = 0;    // read
};

// Takes the catalogs: two of them with millions of pieces each are large
// enough.
Comparison compare(Catalog a, Catalog b, const CompareOptions& options,
                   const EngineOptions& engine, const OutputOptions& output);

}  // namespace ckpt::app
