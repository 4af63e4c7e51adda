// SPDX-License-Identifier: Apache-2.0
// Prefixes that scripts and wrappers put before a model's names: the attribute
// of an application, DistributedDataParallel's "module.", torch.compile's
// "_orig_mod.".
#pragma once

#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "models/family.h"

namespace ckpt::families {

// The name without the words that wrappers of any module add:
// "_fsdp_wrapped_module." and its like.
std::string without_wrappers(std::string name);

// "model.layers.3.x" and "model.layers.{l}.x" as "model.layers.#.x".
std::string numberless(std::string_view name);

enum class Words : uint8_t {
  kKnown,  // those that trainers are known to use: what a loader may expect
  kAny,    // of a script: what is asked is how the model is called inside
};

// Removes a prefix if all names that had it are then those of a family's
// transformers model; the role of a run's model is one, unless there are
// several: it says whose they are. Names of no family lose what wrappers alone
// add. Notes it in the assumptions. Returns true if it did.
// Names of optimizer state stay; the parameters that they refer to follow.
// `likely` is tried before all others, or null.
bool unwrap(Catalog& catalog, const Family* likely, Words words = Words::kAny);

}  // namespace ckpt::families
