// SPDX-License-Identifier: Apache-2.0
// A model under canonical names on its way into one of Megatron's formats: the
// vocabulary padded, args for the job that will load it, modules in order and
// in the spelling of their spec.
#pragma once

#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// True for a source that is not a Megatron checkpoint, but has a model of this
// dialect: somebody translated it (dialect "mcore"), or its names say so.
bool speaks_canonical(const Catalog& source);

// Throws unfaithful_error for names that are not canonical, a vocabulary that
// is smaller than what is asked for. Returns what is known of the model and
// the target.
Facts settle_canonical(Catalog& source, const Layout& layout);

// --transformer-impl is for modules that are spelled anew. Throws usage_error.
void refuse_spelling(const Catalog& source, const Layout& layout);

// After it: "release", or "iter_0000007" for a source that trained. Nothing
// for other sources.
std::optional<std::string> canonical_directory(const Catalog& source);

}  // namespace ckpt::megatron
