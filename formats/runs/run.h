// SPDX-License-Identifier: Apache-2.0
// A training run's step as one checkpoint: the model, its optimizer by the
// names of parameters, and what the trainer kept beside them.
#pragma once

#include <optional>
#include <string>

#include "formats/format.h"
#include "formats/runs/find.h"

namespace ckpt::runs {

// Reads what find_run found. Nothing if the container is not that trainer's
// after all (any directory of DCP may be torchtitan's, any .ckpt Lightning's).
std::optional<Catalog> read_run(const Found& found, const std::string& path,
                                const formats::ReadOptions& options);

// A catalog that a format's reader made, as the trainer's that wrote it:
// torchtitan's DCP, Lightning's file. Unchanged if no trainer is known.
void adopt(Catalog& catalog, const std::string& only,
           const formats::ReadOptions& options);

// True for names that a trainer gives to transformers' models (torchtitan's).
bool has_own_names(const Catalog& catalog);

// Transformers' names and arrangement in their place. Throws unfaithful_error
// where no config.json says the model's numbers.
void take_transformers_names(Catalog& catalog);

// A file that the trainer alone reads, wherever its step is carried: its
// tracker, its states, what says how many ranks there were. `path`: in the
// step, or beside it.
bool is_trainers_own(const std::string& trainer, const std::string& path);

}  // namespace ckpt::runs
