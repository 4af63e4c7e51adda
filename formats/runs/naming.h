// SPDX-License-Identifier: Apache-2.0
// The names of a container's tensors as those of a run: the prefixes of
// trainers.json and the words of wrappers taken off.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/trainer.h"

namespace ckpt::runs {

// Without _fsdp_wrapped_module. and its like, wherever they stand.
std::string unwrapped(std::string name);

// Sets name, kind, param and state of a container's tensors.
class Namer {
 public:
  // `role`: what stands before all names, "actor." or nothing.
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
