// SPDX-License-Identifier: Apache-2.0
// Reads the folder of a step: its containers, then the files beside them.
#pragma once

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/find/found.h"
#include "formats/runs/optimizer/order.h"
#include "formats/runs/read/container.h"

namespace ckpt::runs {

// Throws input_error for a step without a model, with two world sizes, or
// without some rank's file. `containers`, if not null, receives what the step
// is made of.
Catalog read_step(const Found& found, const formats::ReadOptions& options,
                  std::vector<Container>* containers = nullptr);

// What config.json in the folder says about the model's class.
ModelFacts facts_of(const std::string& folder);

}  // namespace ckpt::runs
