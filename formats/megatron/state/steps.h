// SPDX-License-Identifier: Apache-2.0
// How often an optimizer stepped: torch's Adam counts for each parameter,
// Megatron once.
#pragma once

#include <optional>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// True for the count of one parameter's steps.
bool is_count(const Tensor& tensor);

// The count that all of them have; nothing if there are none. Reads them; the
// catalog has to be located. Throws unfaithful_error if they are not one whole
// number, in all ranks' files and of all parameters that have moments.
std::optional<double> common_count(const Catalog& catalog);

// Of ranks' files: the tensors become common_step of the object "optimizer".
void gather_steps(Catalog& catalog);

// The other way: what each parameter of a distributed checkpoint was stepped,
// if its optimizer is torch's, which counts so; nothing for one that counts in
// its groups (FusedAdam). Throws unfaithful_error for a count that can't be
// told, and for optimizers of one chain that differ.
std::optional<double> steps_of_each(Catalog& catalog);

// Adds the tensors, beside exp_avg.
void spread_steps(Catalog& catalog, double step);

}  // namespace ckpt::megatron
