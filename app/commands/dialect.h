// SPDX-License-Identifier: Apache-2.0
// Names and arrangement of the target: --dialect, and the options of a
// conversion between dialects.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/options/options.h"
#include "ckpt/catalog.h"
#include "ckpt/ckpt.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// --dialect --names --family-file --config-from --set --drop --allow-missing
// --allow-unsaid --tokenizer-from
struct DialectOptions {
  std::string dialect;  // "": what the target's format is for; "keep"
  std::string names;    // of transformers' two ways; "": the source's
  std::string family_file;
  std::string config_from;
  std::vector<std::string> set;  // NAME=VALUE
  std::vector<std::string> drop;
  std::optional<bool> tied;
  bool strict_config = false;
  bool renamed = false;  // --rename was given
  bool with_optimizer = false;
  std::vector<std::string> allow_missing;
  std::vector<std::string> allow_unsaid;
  std::string tokenizer_from;
};

// --set by name. Throws usage_error for one without a value.
std::map<std::string, std::string> numbers_of(const DialectOptions& options);

void add_dialect_options(CLI::App& app, DialectOptions& options);

// `partial`: --keys or the like left tensors out, so others may be missing.
Naming naming_of(const DialectOptions& options, const std::string& family,
                 uint64_t vocab_size, std::optional<DType> dtype, bool partial);

// The source in the target's dialect. A format with one dialect (megatron,
// meta, fairseq2 …) gets that. A container of any dialect keeps the source's,
// unless a family is named or the source is Meta's: then it gets transformers'.
Catalog into_dialect(Catalog source, const DialectOptions& options,
                     const std::string& family, const std::string& to_format,
                     uint64_t vocab_size, std::optional<DType> dtype,
                     bool partial);

}  // namespace ckpt::app
