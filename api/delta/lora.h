// SPDX-License-Identifier: Apache-2.0
// The difference of two checkpoints as a LoRA: of each linear's difference the
// nearest product of rank r, by its singular values; what is no linear's is
// whole in it (PEFT's modules_to_save).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/delta/tensor_file.h"
#include "ckpt/catalog.h"
#include "ckpt/delta.h"
#include "lib/progress.h"

namespace ckpt::library {

// The dtype is the factors'; the base is base_model_name_or_path. A dry run
// computes nothing.
struct LoraOptions : DifferenceOptions {
  uint64_t rank = 0;
};

struct LoraResult {
  std::vector<LoraModule> modules = {};  // the largest error first
  std::vector<std::string> saved = {};   // whole
  std::vector<std::pair<std::string, uint64_t>> written = {};  // path, bytes
};

// Writes PEFT's folder at `target`: what makes `b` of `a`, whose tensors have
// the same names. `differing`: those of which nothing is equal. Throws
// resource_error without libtorch's module, or for a matrix that does not fit
// max_mem; unfaithful_error for a tensor that only one of the two has.
LoraResult write_lora(Catalog a, Catalog b,
                      const std::vector<std::string>& differing,
                      const std::string& target, const LoraOptions& options,
                      const Progress& progress);

}  // namespace ckpt::library
