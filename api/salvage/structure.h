// SPDX-License-Identifier: Apache-2.0
// Infers lost metadata from what is left.
//
//   .zarray     names and sizes of the chunks, and an array of which the shape
//               is the same: other states of the parameter, the same tensor of
//               another layer, a norm's other half; or the args of common.pt
//   common.pt   topology and args, as far as tensors and grids of objects
//               determine them
//
// If what is left does not determine it, nothing is made up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/model/facts.h"
#include "lib/manifest.h"

namespace ckpt::library {

struct Inferred {
  std::string bytes;  // of the file
  std::string from;   // what says so
};

// The .zarray of the array that `directory` was. `facts`: of common.pt;
// `entry`: what ckpt's manifest says of the tensor, or null.
std::optional<Inferred> infer_array(const std::string& directory,
                                    const megatron::Facts& facts,
                                    const Manifest::Entry* entry);

// What common.pt says of the model; nothing if it can't be read.
megatron::Facts facts_beside(const std::string& directory);

// A common.pt without values, with which the rest can be opened.
std::string empty_common();
// One with the args that the tensors and objects of `catalog` determine.
Inferred infer_common(const Catalog& catalog);

}  // namespace ckpt::library
