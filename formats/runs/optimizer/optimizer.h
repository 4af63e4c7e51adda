// SPDX-License-Identifier: Apache-2.0
// Turns an optimizer's numbers into parameter names if something proves which
// is which; otherwise its state stays numbered.
//
//   state.3.exp_avg [16, 16]  -> model.layers.0.self_attn.v_proj.weight.exp_avg
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/optimizer/order.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

// What an optimizer's param_groups say: each group's numbers, and some of its
// options if they are plain numbers.
struct Group {
  std::vector<uint64_t> numbers;
  // Of each number, if the optimizer was given named_parameters(): torch (from
  // 2.6 on) keeps them as "param_names". Empty if it was not.
  std::vector<std::string> names;
  std::optional<double> weight_decay, lr;
  std::optional<uint64_t> rank;  // of GaLore's and APOLLO's projections
};
using Groups = std::vector<Group>;

// Nothing if there are no groups, or if they hold names. Throws input_error for
// groups that are malformed or hold a number twice.
std::optional<Groups> read_groups(const pickle::Document& document,
                                  pickle::Id optimizer,
                                  const std::string& path);

// The optimizer's tensors in the catalog, [begin, end); their `param` is a
// number.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

// A name for each number, group by group, or why there is none.
struct Names {
  Groups groups;
  std::vector<std::vector<Parameter>> parameters;  // of each group
  std::string why;       // "the modules of qwen2, in two groups by decay"
  std::string why_not;   // empty: named
  bool refuted = false;  // counts or shapes are against it
  bool stated = false;   // the file has the names: tensors have them, too …
  std::string below;     // … in a module of the model, "net."
};

// True if a state has its parameter's shape: no step, row, column or maximum.
bool tells_shape(const Tensor& tensor);

// The params whose gradients an optimizer projects: no state of theirs has the
// parameter's shape.
std::set<std::string_view> projected(std::span<const Tensor> tensors);

// Names parameters by trainers.json's rule: "decay" or "module". `order`: that
// of the model's parameters; if there is none, `why_not` says so.
Names name_parameters(const Catalog& catalog, const Range& range,
                      const Groups& groups, const std::string& rule,
                      const std::optional<ParameterOrder>& order,
                      const std::string& why_not);

// Names parameters by the names in the file, else by --assume-order, else by
// what is proven: the order of a pickle or of the family. Throws usage_error if
// what is asked for does not fit.
Names named(const Catalog& catalog, const Range& range, const Groups& groups,
            const std::string& rule, std::span<const Tensor* const> model,
            bool pickled, const ModelFacts& facts,
            const formats::ReadOptions& options, const std::string& path);

// Replaces numbers by the names of each group's parameters in the groups
// (<word>param_groups).
void name_groups(Catalog& catalog,
                 const std::vector<std::vector<Parameter>>& parameters,
                 const std::string& prefix, const std::string& word);

// Names the tensors <prefix><parameter>.<state>, and replaces numbers by
// parameter names in the groups (<word>param_groups). Anything whose number has
// no name gets `word`, "actor.optimizer.", in front of its own name.
void apply(Catalog& catalog, const Range& range, const Names& names,
           const std::string& prefix, const std::string& word);

// A DCP of an optimizer's own state dict has numbers where others have names:
// tensors from `begin` on whose parameter (after `prefix`) is a number that no
// model has stay numbered, and a problem says so.
void number_again(Catalog& catalog, size_t begin, const std::string& prefix,
                  const std::string& word, const std::string& path);

// Whether --assume-order could name them all the same.
enum class Assumable : uint8_t { kNo, kYes };

// Names them <word>state.3.exp_avg, and adds a problem that says why.
void leave_numbered(Catalog& catalog, const Range& range,
                    const std::string& word, const std::string& file,
                    const std::string& why, Assumable assumable);

}  // namespace ckpt::runs
