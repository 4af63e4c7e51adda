// SPDX-License-Identifier: Apache-2.0
// What a value tree holds of storages that add_inline_storage (file_plan.h) put
// into it.
#pragma once

#include <optional>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"

namespace ckpt::torch {

// What such a storage holds; nothing for any other one.
std::optional<Content> inline_content(const pickle::Document& document,
                                      pickle::Id node);

}  // namespace ckpt::torch
