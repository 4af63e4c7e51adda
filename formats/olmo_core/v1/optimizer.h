// SPDX-License-Identifier: Apache-2.0
// The optimizer's part: turns helper tensors into objects, and gives states
// their parameters. Private to this folder.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/olmo_core/v1/shards.h"

namespace ckpt::olmo_core::v1 {

// True if the part is an optimizer's: it has num_param_groups and state_keys.
bool is_optimizer(const Part& part);

// Decodes num_param_groups, param_group<i> and state_keys, adds them to the
// catalog's objects, and removes their tensors from the part; the others become
// kind optim, with param and state. Executes nothing. Throws input_error for a
// damaged pickle.
void take_objects(Part& part, Catalog& catalog,
                  const formats::ReadOptions& options);

// The names in a group, in order: those of "_param_names", or of "param_names",
// as it was called before 2024-04-01.
std::vector<std::string> parameter_names(const Object& group);

// Checks for moments shaped unlike their parameters: the peer's trainer saved
// one rank's part of them after a resume with tensor parallelism.
void check_moments(Catalog& catalog);

}  // namespace ckpt::olmo_core::v1
