// SPDX-License-Identifier: Apache-2.0
// Names that a load and a checkpoint don't share: raised, told or returned.
#pragma once

#include <string>
#include <vector>

#include "ckpt/sharded.h"

namespace ckpt::library {

// Both outlive it.
class Strictness {
 public:
  Strictness(const LoadOptions& options, const std::string& path)
      : options_(options), path_(path) {}

  // `unexpected`: requested and not in the checkpoint; `missing`: in it and not
  // requested. Raises or tells what is to be, of both at once as the peer does,
  // and leaves what is to be returned.
  void judge(std::vector<std::string>& unexpected,
             std::vector<std::string>& missing) const;

 private:
  const LoadOptions& options_;
  const std::string& path_;
};

}  // namespace ckpt::library
