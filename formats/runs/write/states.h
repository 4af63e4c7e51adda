// SPDX-License-Identifier: Apache-2.0
// What a trainer keeps beside model and optimizer, as far as another can use
// it: the step and the scheduler's position. Private to this room.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/runs/optimizer/adam.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

struct Scheduler {
  std::string from;      // the object it was in; "": the source has none
  int64_t position = 0;  // last_epoch
  pickle::Id whole = pickle::kNoId;  // the state dict, if it is there
};

struct States {
  std::shared_ptr<pickle::Document> document =
      std::make_shared<pickle::Document>();
  Scheduler scheduler;
  std::optional<uint64_t> step;  // steps of the optimizer
  bool counted = false;          // by the optimizer's own count
};

// `source` must have all objects opened. Reads the optimizer's step count if
// the trainer keeps none.
States find_states(const Catalog& source, const Adam& adam);

// A copy of a value of the source's, with the tensors that are inside of it.
// Nothing if one of them is among the catalog's, or is left out there.
std::optional<pickle::Id> import_value(pickle::Document& to,
                                       const Catalog& source,
                                       const pickle::Document& from,
                                       pickle::Id node);

// torch's LambdaLR, whose function is the target's own, for groups with these
// options: {"base_lrs": […], "last_epoch": 10, …}.
pickle::Id lambda_scheduler(pickle::Document& document, const Adam& adam,
                            const std::vector<AdamGroup>& groups,
                            int64_t position);

// A torch.save file that holds a value and no tensors.
TargetFile value_file(const std::string& path, pickle::Document& document,
                      pickle::Id root);

}  // namespace ckpt::runs
