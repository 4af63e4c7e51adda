// SPDX-License-Identifier: Apache-2.0
// Translates a checkpoint into another dialect's names and arrangement. No byte
// moves: the source's pieces become those of the target's tensors, in one plan
// with the target's topology.
//
//   source ─► its dialect ─► hf ─► the target's dialect ─► Writer::review
//             └─ each rule undone ┘└─ each rule done ─┘
//
// Complete or refused: every tensor of the source is used and every tensor of
// the target is made, or the error lists the exceptions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/numbers.h"

namespace ckpt::families {

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
  // Globs of facts that the target may leave unsaid.
  std::vector<std::string> allow_unsaid;
  std::optional<DType> dtype;  // --dtype: what config.json is to say
  // For comparisons: tensors that don't fit stay as they are, under their own
  // names.
  bool lenient = false;
};

// The dialect of a format that has only one; "" for a container of any.
std::string_view dialect_of_format(std::string_view format);
// As messages call it: "Megatron".
std::string_view owner_of(std::string_view dialect);
// By the format or by the names of the tensors; "" if neither says.
std::string_view dialect_of(const Catalog& catalog);

// The family that the options, the source's configuration or the source itself
// name, or null.
std::shared_ptr<const Family> find_family(const Catalog& source,
                                          const TranslateOptions& options);

// The source in the dialect options.to, with its configuration: config.json,
// params.json or model.yaml as a sidecar without a file, args as an object. The
// assumptions get the numbers with their sources. Throws unfaithful_error
// listing what does not fit, usage_error for an unknown family.
Catalog translate(Catalog source, const TranslateOptions& options);

}  // namespace ckpt::families
