// SPDX-License-Identifier: Apache-2.0
// Steps in one container, which only its contents tell from anybody's.
#pragma once

#include <string>

#include "formats/format.h"

namespace ckpt::runs {

// Turns a catalog from a format's reader into that of the trainer that wrote
// it: torchtitan's DCP, Lightning's file. Unchanged if no trainer is known.
// `only`: a trainer's name, or "" for any.
void adopt(Catalog& catalog, const std::string& only,
           const formats::ReadOptions& options);

}  // namespace ckpt::runs
