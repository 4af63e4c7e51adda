// SPDX-License-Identifier: Apache-2.0
// Assigns the files of a directory to their ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/format.h"

namespace ckpt::vllm {

formats::Support supports(const std::string& path);

// "model-rank-0-part-2.safetensors"
std::string file_name(uint32_t rank, uint32_t part);

// A file of a tensor-parallel rank. Pipelines have such files per stage:
//
//   model-pp-1-tp-0-part-2.safetensors     vLLM's
//   model-pp-1-rank-0-part-2.safetensors   SGLang's
struct Part {
  std::string name;
  uint32_t stage = 0;
};

// The parts of each rank, by stage. Throws input_error if stages, ranks or
// parts are missing or if there are names of two kinds, missing_error if there
// are none at all.
std::vector<std::vector<Part>> locate(const std::string& directory);

}  // namespace ckpt::vllm
