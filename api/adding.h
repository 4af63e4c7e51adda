// SPDX-License-Identifier: Apache-2.0
// The tensors of a base to which one adapter is added.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "ckpt/catalog.h"
#include "formats/peft/adapter.h"
#include "reshard/sources/low_rank.h"
#include "reshard/sources/two_products.h"

namespace ckpt::library {

using MadeList = std::list<std::unique_ptr<reshard::Made>>;

class Adding {
 public:
  // Computed files are kept in `made`.
  Adding(Catalog& base, peft::Adapter& adapter, double weight,
         bool allow_nonfinite, MadeList& made);

  void add_module(const std::string& name, const peft::Module& module);
  // Replaces the base's tensor, in the base's dtype. It counts as made, since
  // the base's manifest knows nothing about it.
  void put_whole(const std::string& name, const Tensor& whole);
  // peft's resize_token_embeddings(): tokens were added in training, and each
  // table of them is in the adapter whole. What to say about it, or "".
  std::string follow_tokens();
  // The adapter's files become the base's, so that a change during the run is
  // noticed.
  uint32_t first_file();

 private:
  void put_file(Tensor& tensor, const reshard::Made& made,
                const std::string& path);
  Tensor& tensor(const std::string& name);
  reshard::StoredMatrix stored(const Tensor& tensor) const;
  bool is_transposed(const std::string& name, const peft::Module& module,
                     const Tensor& weight) const;
  void put(Tensor& tensor, reshard::LowRankTerm term);
  void put_made(Tensor& tensor, std::unique_ptr<reshard::Made> sum);
  // LoHa's and LoKr's.
  void add_products(Tensor& weight, const peft::Module& module, float scale);

  Catalog& base_;
  peft::Adapter& adapter_;
  const double weight_;
  const bool allow_nonfinite_;
  MadeList& made_;
  std::unordered_map<std::string, size_t> place_;
  std::optional<uint32_t> first_;
  std::set<std::pair<uint64_t, uint64_t>> grown_;  // rows before and after
};

}  // namespace ckpt::library
