// SPDX-License-Identifier: Apache-2.0
// Which files of a directory make up a safetensors checkpoint. As in
// transformers, the first that exists:
//
//   model.safetensors                         one file, and optim.safetensors
//                                             if that is there too
//   model.safetensors.index.json              the files that it names
//   model-0000x-of-0000N.safetensors          all N
//   the same for diffusion_pytorch_model, adapter_model, consolidated
//   *.safetensors.index*.json                 if it is the only one
//   *.safetensors                             all of them together
#pragma once

#include <string>
#include <vector>

namespace ckpt::safetensors {

struct Files {
  std::string directory;
  std::vector<std::string> names;   // in the directory; sorted
  std::string index;                // its name, or ""
  std::vector<std::string> unread;  // other .safetensors files present
};

// True for a name that may be a safetensors file; hidden files are not.
bool is_weights_name(std::string_view name);

// Throws usage_error if it is unclear which files to take, input_error if an
// x-of-N set lacks files, missing_error if there is nothing. With an index,
// `names` stays empty: the index has them.
Files locate(const std::string& directory);

}  // namespace ckpt::safetensors
