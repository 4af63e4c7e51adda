// SPDX-License-Identifier: Apache-2.0
// Turns the names of a container's tensors into a run's: removes
// trainers.json's prefixes and the words that wrappers add.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

// The name of a state without the dict that bitsandbytes saves its own in
// (Optimizer8bit.state_dict, so that FSDP gathers none of them); its loader
// takes them with it and without.
std::string_view bare_state(std::string_view state);

// Where in a model its parameters are that a script gave these names: "" at its
// top, "net." for a module's own names. Nothing if in none, or in several. Live
// names need not be saved ones (fused experts): at the top, some are enough.
std::optional<std::string> place_of(const std::set<std::string>& names,
                                    const std::set<std::string>& model);

// Sets name, kind, param and state of a container's tensors.
class Namer {
 public:
  // `role`: prefix of all names, "actor." or nothing.
  Namer(const Source& source, std::string role)
      : source_(source), role_(std::move(role)) {}

  void name(std::span<Tensor> tensors);

 private:
  void classify(Tensor& tensor);
  void name_state(Tensor& tensor);

  const Source& source_;
  const std::string role_;
  std::unordered_set<std::string> model_;
  std::map<const Tensor*, std::string> rest_;
};

}  // namespace ckpt::runs
