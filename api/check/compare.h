// SPDX-License-Identifier: Apache-2.0
// Two checkpoints, tensor by tensor, whatever their topologies.
#pragma once

#include <string>

#include "api/engine.h"
#include "ckpt/check.h"

namespace ckpt::library {

struct CompareOptions {
  double rtol = 0;
  double atol = 0;
  bool numeric = false;  // --rtol or --atol was given: values may differ so
                         // much, and dtypes may differ
  bool objects = false;  // compare values that are not tensors too
  bool alike_objects = false;  // only the bytes inside those that look alike
  bool describe = false;       // say how far values are apart
  bool casts = false;          // whether a cast makes other dtypes equal
  bool arrangements = false;   // and which rearrangement makes them equal
  uint64_t vocabulary = 0;     // entries that are in use, if known
};

// "12 of 64 elements differ, relative L2 0.0012, at most by 0.01"
std::string distance_text(const Distance& distance);

// Takes the catalogs over: two with millions of pieces each are large enough.
Comparison compare(Catalog a, Catalog b, const CompareOptions& options,
                   const Engine& engine);

}  // namespace ckpt::library
