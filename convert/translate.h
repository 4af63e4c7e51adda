// SPDX-License-Identifier: Apache-2.0
// A checkpoint as another dialect names and arranges it. No byte moves: the
// pieces of the source become those of the target's tensors, in one plan with
// whatever topology the target has.
//
//   source ─► its dialect ─► hf ─► the target's dialect ─► Writer::review
//             └─ each rule undone ┘└─ each rule done ─┘
//
// Complete or refused: every tensor of the source is used and every tensor of
// the target made, or the error lists those that are not.
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
  // For comparisons: what does not fit stays as it is, under its own name.
  bool lenient = false;
};

// The dialect of a format that has just one; "" for a container of any.
std::string_view dialect_of_format(std::string_view format);
// As messages call it: "Megatron".
std::string_view owner_of(std::string_view dialect);
// By the format, or by the names of the tensors; "" if neither tells.
std::string_view dialect_of(const Catalog& catalog);

// The family that the options, the source's configuration or the source itself
// name, or null.
std::shared_ptr<const Family> find_family(const Catalog& source,
                                          const TranslateOptions& options);

// The source in the dialect options.to, with the configuration that belongs to
// it: config.json, params.json, model.yaml as sidecars without a file, args as
// an object. Numbers go into the assumptions, with their sources. Throws
// unfaithful_error that lists what does not fit; usage_error for an unknown
// family.
Catalog translate(Catalog source, const TranslateOptions& options);

}  // namespace ckpt::families
