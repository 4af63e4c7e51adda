// SPDX-License-Identifier: Apache-2.0
// Two checkpoints, tensor by tensor, whatever their topologies.
#pragma once

#include <string>
#include <vector>

#include "api/engine.h"
#include "ckpt/check.h"

namespace ckpt::library {

// Tensors that only one side has in blocks of few bits, and that are equal but
// for what such blocks keep of numbers.
struct Rounded {
  std::string type;      // of the blocks: "Q8_0"
  uint64_t tensors = 0;  // so many
  double largest = 0;    // error, as a part of its block's largest magnitude
  double deviation = 0;  // of the worst tensor: root mean square of the errors,
                         // as a part of that of the numbers
};

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
  // Where such tensors are counted, by type; null: they differ.
  std::vector<Rounded>* rounded = nullptr;
  // Where tensors are counted that differ, but within the tolerance; or null.
  uint64_t* within = nullptr;
};

// "12 of 64 elements differ, relative L2 0.0012, at most by 0.01"
std::string distance_text(const Distance& distance);

// Takes the catalogs over: two with millions of pieces each are large enough.
Comparison compare(Catalog a, Catalog b, const CompareOptions& options,
                   const Engine& engine);

}  // namespace ckpt::library
