// SPDX-License-Identifier: Apache-2.0
// How often an optimizer stepped: torch's Adam counts per parameter, Megatron
// once.
#pragma once

#include <optional>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

// True for the count of one parameter's steps.
bool is_count(const Tensor& tensor);

// The count that all of them have; nothing if there are none. Reads them, so
// the catalog must be located. Throws unfaithful_error unless they are one
// whole number, in all ranks' files and for all parameters that have moments.
std::optional<double> common_count(const Catalog& catalog);

// For ranks' files: turns the tensors into common_step of the object
// "optimizer".
void gather_steps(Catalog& catalog);

// The other way: how often each parameter of a distributed checkpoint was
// stepped, if its optimizer is torch's, which counts so. Nothing for one that
// counts in its groups (FusedAdam). Throws unfaithful_error if the count can't
// be told, or if the optimizers of a chain differ.
std::optional<double> steps_of_each(Catalog& catalog);

// Adds the tensors, beside exp_avg.
void spread_steps(Catalog& catalog, double step);

}  // namespace ckpt::megatron
