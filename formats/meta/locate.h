// SPDX-License-Identifier: Apache-2.0
// Which files of a directory make up a checkpoint.
//
//   consolidated.00.pth … consolidated.NN.pth    all of them, without a gap
//   consolidated.safetensors                     where a params.json is and no
//                                                model*.safetensors
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"

namespace ckpt::meta {

formats::Support supports(const std::string& path);

// "consolidated.07.pth"
std::string file_name(uint32_t rank);

// The file names, by rank. Throws input_error if some are missing,
// missing_error if there are none.
std::vector<std::string> locate(const std::string& directory);

}  // namespace ckpt::meta
