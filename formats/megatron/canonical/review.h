// SPDX-License-Identifier: Apache-2.0
// A model under canonical names on its way into one of Megatron's formats: pads
// the vocabulary, makes args for the job that will load it, puts modules in
// order and in the spelling of their spec.
#pragma once

#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// True for a source that is not a Megatron checkpoint, but has a model of this
// dialect: it was translated (dialect "mcore"), or its names say so.
bool speaks_canonical(const Catalog& source);

// Throws unfaithful_error for names that are not canonical, and for a
// vocabulary smaller than requested. Returns what is known about the model and
// the target.
Facts settle_canonical(Catalog& source, const Layout& layout);

// Throws usage_error: --transformer-impl is for modules that are respelled.
void refuse_spelling(const Catalog& source, const Layout& layout);

// To be called after it: "release", or "iter_0000007" for a source that was in
// training. Nothing for other sources.
std::optional<std::string> canonical_directory(const Catalog& source);

}  // namespace ckpt::megatron
