// SPDX-License-Identifier: Apache-2.0
// torch.save of a value that is not a tensor. Also used by olmo_core.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::dcp {

// True if a value leads to storages of tensors whose bytes are not at hand:
// then it can't be written as a value.
bool has_unknown_storage(const Catalog& source,
                         const pickle::Document& document, pickle::Id node);

// The whole archive. `wrap`: of a list of one with the value in it. Storages
// in it are written if the source's skeleton knows their bytes; else an
// unfaithful_error that names the object.
std::string value_item(const Catalog& source, const std::string& name,
                       const pickle::Document& document, pickle::Id node,
                       bool wrap);

}  // namespace ckpt::dcp
