// SPDX-License-Identifier: Apache-2.0
// A run's optimizer, independent of the trainer that wrote it: Adam's moments
// by parameter and the groups with their options, whatever their original form.
//
//   groups as a list      [{"lr": 1e-3, "params": [0, 1]}, …]    torch.optim
//   as values             optimizer_0.param_groups.0.lr          DCP
//   of each parameter     optimizer.param_groups.<name>.lr       torchtitan
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

struct AdamGroup {
  std::vector<std::string> params;
  // lr, betas, eps, weight_decay …; values of Adam::options.
  std::vector<std::pair<std::string, pickle::Id>> options;
};

struct Adam {
  // parameter -> state -> its tensor in the catalog.
  std::map<std::string, std::map<std::string, size_t>> states;
  std::vector<AdamGroup> groups;  // they have all of `states`
  // True if `groups` are in the order in which the trainer numbered them.
  bool ordered = false;
  // True if the file has no groups: these have equal options.
  bool by_options = false;
  std::shared_ptr<pickle::Document> document =
      std::make_shared<pickle::Document>();
};

// Throws unfaithful_error for state that is not Adam's, has no parameter, or
// lacks one of the two moments, and for an optimizer without groups. Returns an
// empty one if there is no state at all.
Adam find_adam(const Catalog& source);

// True if both groups are equal except for their parameters.
bool same_options(const Adam& adam, const AdamGroup& a, const AdamGroup& b,
                  std::string* differs = nullptr);

// The first value with this name in `group`; kNoId if absent.
pickle::Id option(const AdamGroup& group, std::string_view name);

}  // namespace ckpt::runs
