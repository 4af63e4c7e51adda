// SPDX-License-Identifier: Apache-2.0
// Joins the files of all ranks into a catalog of whole tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/deepspeed/model_states.h"
#include "formats/deepspeed/optim_states.h"
#include "formats/deepspeed/pieces.h"
#include "formats/deepspeed/rules.h"

namespace ckpt::deepspeed {

// One model-parallel rank: its model states (with ZeRO 3, those of every
// data-parallel rank) and all partitions of its optimizer states.
struct Column {
  std::vector<ModelRank> models;  // by dp
  std::vector<OptimRank> optims;  // by dp; may be none

  const ModelRank& model() const { return models.front(); }
};

// Throws input_error if the partitions don't match the model: counts, lengths,
// padding, and where each rank says its fragments are.
void check_column(const Column& column);

// ZeRO 1 and 2: elements in one partition of a group, with padding.
uint64_t partition_size(const Column& column, size_t group);

class Assembler {
 public:
  Assembler(Catalog& catalog, const Rules& rules)
      : catalog_(catalog), rules_(rules) {}

  // `stage`: the tensor-parallel ranks of one pipeline stage.
  void add_masters(std::span<const Column> stage);
  // Adds frozen parameters, buffers and, without optimizer states, all
  // parameters.
  void add_module(std::span<const Column> stage);
  // A pipeline layer's files, one per tensor-parallel rank.
  using Named = std::vector<std::pair<std::string, torch::TensorRef>>;
  void add_slices(std::span<const Named* const> ranks,
                  const std::set<std::string>& buffers,
                  const std::vector<std::string>& paths);
  void add_shared(const ModelRank& rank);
  // Adds a tensor that is already whole.
  void add_model(Tensor tensor);
  void add_optim(Tensor tensor) { optim_.push_back(std::move(tensor)); }
  bool has(const std::string& name) const { return places_.contains(name); }
  // Appends the optimizer state after the model.
  void finish();

 private:
  struct Local;
  using ByName = std::map<std::string_view, const torch::TensorRef*>;
  void add_rounding(const std::string& name, std::span<const ByName> ranks);
  Tensor make(const std::string& name, const Joined& joined);
  void add_frozen(std::span<const Column> stage);
  void add_states(const std::string& name, const Joined& joined,
                  std::span<const Column> stage, std::span<const Local> locals);
  bool equal_bytes(std::span<const torch::TensorRef* const> refs) const;
  // merge.cc: one tensor, computed as it is read.
  void merge(Tensor& tensor, Merge how,
             const std::vector<std::vector<Piece>>& ranks);
  void say_merged();
  Joined join_module(const std::string& name, const std::vector<Shape>& shapes,
                     std::span<const torch::TensorRef* const> refs,
                     bool buffer);
  void note_replicas(const std::string& name, size_t t);

  Catalog& catalog_;
  const Rules& rules_;
  std::map<std::string, size_t> places_;  // of model tensors
  std::vector<Tensor> optim_;
  uint32_t ties_ = 0;
  // Those whose elements merged ones are made of; filled at the end.
  std::shared_ptr<std::vector<File>> merged_of_;
  std::string first_mean_;
  size_t sums_ = 0, means_ = 0;
};

}  // namespace ckpt::deepspeed
