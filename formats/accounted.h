// SPDX-License-Identifier: Apache-2.0
// What lies in a directory and is not of the checkpoint there: what would be
// lost if the directory were replaced.
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
  std::vector<std::string> names;  // files, and "FOLDER/" where all of it is
  uint64_t files = 0;
  std::string why;  // the directory can't be opened: what the reader says
};

// `is_listed` says of a file (relative to `directory`) that it is accounted for
// already; the directory is opened only if others remain. Throws kIo.
Strangers find_strangers(
    const std::string& directory,
    const std::function<bool(const std::string&)>& is_listed);

}  // namespace ckpt::formats
