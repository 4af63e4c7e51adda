// SPDX-License-Identifier: Apache-2.0
// What a translation is asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/dtype.h"
#include "models/numbers.h"

namespace ckpt::families {

struct Finding;

struct TranslateOptions {
  std::string to;           // "hf", "mcore", "meta", "fairseq2", "olmo_core"
  std::string family;       // --family; "": as the source says
  std::string family_file;  // --family-file
  std::string config_from;  // --config-from: a directory with a config.json
  Overrides set;            // --set
  // Globs of source tensors that may be left out, and of tensors of either
  // dialect that may be missing.
  std::vector<std::string> drop;
  std::vector<std::string> allow_missing;
  bool strict_config = false;  // unknown keys of config.json are refused
  // Globs of facts that the target may lose.
  std::vector<std::string> allow_unsaid;
  std::string tokenizer_from = {};  // --tokenizer-from
  std::optional<DType> dtype;       // --dtype: what config.json is to say
  // For comparisons: tensors that don't fit stay as they are, under their own
  // names.
  bool lenient = false;
  // For a check: tensors that don't fit are added here, and end nothing.
  std::vector<Finding>* findings = nullptr;
};

}  // namespace ckpt::families
