// SPDX-License-Identifier: Apache-2.0
// `diff --html`: the tensors of both checkpoints as a map, coloured by how they
// compare, and a table of their distances.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "api/check/compare.h"
#include "ckpt/catalog.h"
#include "convert/config/facts.h"

namespace ckpt::app {

// Made before the comparison, which takes the catalogs over. Keeps the largest
// of very many tensors.
class DiffPage {
 public:
  DiffPage(const Catalog& a, const Catalog& b);
  std::string text(const Comparison& result,
                   const std::vector<families::FactDifference>& facts) const;

 private:
  struct Row {
    std::string name;
    DType dtype = DType::f32;
    Shape shape;
    uint64_t bytes = 0;
  };
  void add(const Tensor& tensor);
  void keep_largest();

  std::string a_, b_;
  std::vector<Row> rows_;  // of both sides, each name once
  std::unordered_map<std::string, size_t> index_;
  uint64_t left_out_ = 0;  // rows
};

}  // namespace ckpt::app
