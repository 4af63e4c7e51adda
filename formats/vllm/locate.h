// SPDX-License-Identifier: Apache-2.0
// Which files of a directory are whose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/format.h"

namespace ckpt::vllm {

formats::Support supports(const std::string& path);

// "model-rank-0-part-2.safetensors"
std::string file_name(uint32_t rank, uint32_t part);

// The names of each rank's parts. Throws input_error if ranks or parts are
// missing, missing_error if there are none at all.
std::vector<std::vector<std::string>> locate(const std::string& directory);

}  // namespace ckpt::vllm
