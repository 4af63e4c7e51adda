// SPDX-License-Identifier: Apache-2.0
// Tensors as people think of them: one row for the same tensor in all layers.
//
//   layers.0.attn.q_proj.weight  bf16 [4096, 4096]
//   layers.1.attn.q_proj.weight  bf16 [4096, 4096]    give one row,
//   ...                                               ×32
//   layers.#.attn.q_proj.weight  bf16 [4096, 4096]
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::app {

struct PatternRow {
  std::string name;  // a # stands for each number that differs
  uint64_t count = 0;
  uint64_t bytes = 0;
  uint64_t pieces = 0;
  const Tensor* first = nullptr;  // for dtype, shape, rule
  // Indexes in Catalog::tensors; of pattern_rows only.
  std::vector<uint32_t> members = {};
  // Optimizer state of many parameters, each shaped and split like its
  // parameter.
  bool like_parameter = false;
};

// Tensors of one kind, in order of first appearance. Tensors share a row if
// their names differ only in whole-number components (12, or weight12 of
// grouped experts) and their dtype, shape and split agree. If one pattern still
// has several rows, the names say which numbers: layers.{0-2,5}.weight.
std::vector<PatternRow> pattern_rows(const Catalog& catalog, Kind kind);

// The tensors in the row of `first`, including itself.
std::vector<const Tensor*> tensors_like(const Catalog& catalog,
                                        const Tensor& first);

// Optimizer tensors by state and dtype only ("*.exp_avg"), if they have the
// shapes of their parameters. Empty if that would say too little: a state is
// unknown, or the parameters are not in the catalog.
std::vector<PatternRow> state_rows(const Catalog& catalog);

// "layers.12.w1" -> "layers.#.w1"
std::string pattern_of(std::string_view name);

// Joins names of one pattern: "layers.{0-2,5}.w1"; a single name stays.
std::string spelled_name(const std::vector<std::string_view>& names);

// "tp dim 0", "tp dim 0 in 3 groups", "replicated", "" if unknown or tp is 1
std::string split_text(const TpRule& rule);

}  // namespace ckpt::app
