// SPDX-License-Identifier: Apache-2.0
// Which files of a directory make up a torch checkpoint. The first that exists:
//
//   pytorch_model.bin                        one file
//   pytorch_model.bin.index.json             the files that it names
//   pytorch_model-0000x-of-0000N.bin         all N
//   the same for diffusion_pytorch_model, adapter_model
//   *.bin.index*.json, *-x-of-N.bin, *.bin   if there is only one (set)
//   hf_model_000N_E.pt                       all N of the last epoch E
//   *.pt, *.pth, *.bin, *.ckpt               if they hold parts of DTensors:
//                                            one file per rank, all together
//   the same endings, with flat parameters   one file (or more) per rank
//   the same endings                         if there is only one file
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ckpt::torch {

struct Files {
  std::vector<std::string> names;  // in the directory; sorted
  std::string index;               // its name, or ""; then names is empty
  bool ranks = false;              // each holds parts of the same tensors
  // Each rank's files with its runs of FSDP's flat parameters; names is then
  // empty.
  std::vector<std::vector<std::string>> flat;
  std::vector<std::string> unread;  // other weights present
};

// How many files in the directory are torch files by name.
size_t count_torch_names(const std::string& directory);

// Nothing if the directory holds no torch checkpoint. Throws input_error if an
// x-of-N set lacks files. `flat`: files of numbered ranks are known to have
// flat parameters (--flat-params).
std::optional<Files> locate(const std::string& directory, bool flat = false);

// True for "pytorch_model.bin.index.json" and its variants.
bool is_bin_index(const std::string& path);

}  // namespace ckpt::torch
