// SPDX-License-Identifier: Apache-2.0
// model.yaml: the family and the configuration of a model.
//
//   name: checkpoint
//   model_family: llama
//   model_config:          # 0.3 and 0.4: one level deeper, under _set_
//     model_dim: 4096
//     shard_embed_dim: false
#pragma once

#include <string>

#include "models/config.h"

namespace ckpt::fairseq2 {

struct ModelYaml {
  std::string path;
  std::string family;
  families::Config config;  // with today's field names
};

// Throws input_error naming the line for files over 16 MiB, aliases, more than
// 100,000 values, nesting deeper than 64, or what is not YAML at all.
ModelYaml read_model_yaml(const std::string& path);
// The same for a text; `path` is for messages.
ModelYaml model_yaml_of(const std::string& path, const std::string& text);

// Asks a server for it; whoever reads it soon finds it on its way.
void ask_for_yaml(const std::string& path);

// The scalars of any such file, by their dotted keys.
families::Config read_flat_yaml(const std::string& path);
// The same for a text; `path` is for messages.
families::Config flat_yaml(const std::string& path, const std::string& bytes);

}  // namespace ckpt::fairseq2
