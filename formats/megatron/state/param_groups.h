// SPDX-License-Identifier: Apache-2.0
// Megatron's parameter groups compared with torch's. Megatron's have no list of
// parameters: its optimizers rebuild the groups, and find the options of each
// by what distinguishes groups.
//
//   wd_mult             0 for biases and vectors, 1 for the rest
//   is_expert_parallel  True for experts of a job with expert parallelism
//   lr_mult, is_decoupled_lr
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::megatron {

// Options of an optimizer by name: lr, betas, eps, weight_decay.
using GroupOptions = std::vector<std::pair<std::string, pickle::Id>>;

// The groups of an object "optimizer".
class ParamGroups {
 public:
  // Throws unfaithful_error if there is no such object, or it has no groups.
  explicit ParamGroups(const Catalog& catalog);

  const pickle::Document& document() const { return *document_; }
  // The index of a parameter's group, by its canonical name and shape. Throws
  // unfaithful_error if two groups may have it.
  size_t of(const std::string& param, const Shape& shape) const;
  size_t size() const { return groups_.size(); }
  // Leaves out Megatron's own entries; max_lr becomes initial_lr.
  GroupOptions options(size_t group, pickle::Document& into) const;
  // The number of steps taken; nothing if no group says it.
  std::optional<double> step() const { return step_; }

 private:
  struct Group {
    pickle::Id dict = pickle::kNoId;
    bool decays = true;
    bool expert = false;
    std::string text;  // of all its options
  };
  void add(pickle::Id optimizer);
  void add_group(pickle::Id dict);

  const Catalog& catalog_;
  std::shared_ptr<const pickle::Document> document_;
  std::vector<Group> groups_;
  std::optional<double> step_;
  bool norms_decay_ = false;  // of queries and keys
};

// True for parameters that Megatron's weight decay reaches.
bool decays(const std::string& param, const Shape& shape);

// The object "optimizer" of a distributed optimizer, in fully_reshardable form:
// one group for what decays and one for what does not.
Object make_optimizer(const pickle::Document& from,
                      const GroupOptions& decaying, const GroupOptions& others,
                      double step);

// For a job with expert-parallel ranks: its experts have their own optimizer,
// the second one of a chain.
void chain_experts(Catalog& catalog);

}  // namespace ckpt::megatron
