// SPDX-License-Identifier: Apache-2.0
// An optimizer's numbers as names of parameters, where something proves which
// is which; otherwise its state stays numbered.
//
//   state.3.exp_avg [16, 16]  -> model.layers.0.self_attn.v_proj.weight.exp_avg
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/order.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

// What an optimizer's param_groups say: the numbers of each.
using Groups = std::vector<std::vector<uint64_t>>;

// Nothing if there are no groups, or they are of names. Throws input_error for
// groups that are malformed or have a number twice.
std::optional<Groups> read_groups(const pickle::Document& document,
                                  pickle::Id optimizer,
                                  const std::string& path);

// The optimizer's tensors in the catalog: [begin, end), whose `param` is a
// number.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// A name for each number, group by group, or why there is none.
struct Names {
  Groups groups;
  std::vector<std::vector<Parameter>> parameters;  // of each group
  std::string why;      // "the modules of qwen2, in two groups by decay"
  std::string why_not;  // empty: they are named
};

// By the rule of trainers.json: "decay" or "module". `order`: of the model's
// parameters; if there is none, `why_not` says so.
Names name_parameters(const Catalog& catalog, const Range& range,
                      const Groups& groups, const std::string& rule,
                      const std::optional<ParameterOrder>& order,
                      const std::string& why_not);

// What --assume-order asks for, instead of what is proven: the rule, "decay"
// or "module", and the order: the model's tensors as they stand, or those of a
// FILE of names, one a line. Throws usage_error for a file that can't be read
// and a name that the model does not have.
struct Asked {
  std::string rule;
  ParameterOrder order;
};
Asked asked_order(const std::string& text,
                  std::span<const Tensor* const> model);

// By --assume-order, else by what is proven: the order of a pickle, or that of
// the family. Throws usage_error where what is asked does not fit.
Names named(const Catalog& catalog, const Range& range, const Groups& groups,
            const std::string& rule, std::span<const Tensor* const> model,
            bool pickled, const ModelFacts& facts,
            const formats::ReadOptions& options, const std::string& path);

// Gives the tensors their names: <prefix><parameter>.<state>, and the groups
// (<word>param_groups) those of their parameters. What belongs to no number
// that is named has `word`, "actor.optimizer.", before what it has.
void apply(Catalog& catalog, const Range& range, const Names& names,
           const std::string& prefix, const std::string& word);

// DCP of an optimizer's own state dict has numbers where others have names:
// tensors from `begin` on whose parameter (behind `prefix`) is a number that
// no model has stay numbered, and a problem says so.
void number_again(Catalog& catalog, size_t begin, const std::string& prefix,
                  const std::string& word, const std::string& path);

// <word>state.3.exp_avg, with a problem that says why.
void leave_numbered(Catalog& catalog, const Range& range,
                    const std::string& word, const std::string& file,
                    const std::string& why);

}  // namespace ckpt::runs
