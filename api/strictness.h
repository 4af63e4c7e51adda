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

  // Requested and not in the checkpoint; what is to be returned of them.
  std::vector<std::string> unexpected(std::vector<std::string> names) const;
  // In the checkpoint and not requested.
  std::vector<std::string> missing(std::vector<std::string> names) const;

 private:
  void apply(const std::vector<std::string>& names, std::string_view what,
             bool raise, bool log) const;

  const LoadOptions& options_;
  const std::string& path_;
};

}  // namespace ckpt::library
