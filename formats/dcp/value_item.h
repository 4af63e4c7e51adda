// SPDX-License-Identifier: Apache-2.0
// torch.save of a value that is not a tensor. Also used by olmo_core.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::dcp {

// True if a value refers to tensor storages whose bytes are not at hand, so
// that it can't be written as a value.
bool has_unknown_storage(const Catalog& source,
                         const pickle::Document& document, pickle::Id node);

// Returns the whole archive. `wrap`: of a list that holds only the value.
// Writes storages if the source's skeleton knows their bytes; otherwise throws
// unfaithful_error naming the object.
std::string value_item(const Catalog& source, const std::string& name,
                       const pickle::Document& document, pickle::Id node,
                       bool wrap);

}  // namespace ckpt::dcp
