// SPDX-License-Identifier: Apache-2.0
// What a directory holds besides its checkpoint: what would be lost if the
// directory were replaced.
//
//   read                  files of which the reader takes tensors or values
//   known beside those    indexes, config, tokenizer, templates, states of
//                         training, README, LICENSE, pictures, the model's code
//   strange               all else: src/, data/, train.py, another run, weights
//                         that nothing reads
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ckpt::formats {

struct Strangers {
  std::vector<std::string> names;  // files, and "FOLDER/" for whole folders
  uint64_t files = 0;
  std::string why;  // what the reader says if the directory can't be opened
};

// `is_listed` returns true for a file (relative to `directory`) that is already
// accounted for. The directory is opened only if other files remain. Throws
// kIo.
Strangers find_strangers(
    const std::string& directory,
    const std::function<bool(const std::string&)>& is_listed);

}  // namespace ckpt::formats
