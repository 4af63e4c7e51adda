// SPDX-License-Identifier: Apache-2.0
// Which rules apply to a checkpoint: those of --shard-dims, then of --family,
// model.yaml, or what the names and shapes prove.
#pragma once

#include <optional>
#include <string>

#include "formats/fairseq2/model.h"
#include "formats/fairseq2/model_yaml.h"
#include "models/rules.h"

namespace ckpt::fairseq2 {

// A checkpoint's model.yaml: in its directory, or one or two levels above.
std::optional<std::string> find_model_yaml(const Location& location);

// Sets catalog.family, and says in catalog.assumptions where each choice comes
// from. If the family stays unknown, only --shard-dims has rules.
families::Rules choose_rules(const formats::ReadOptions& options,
                             const std::optional<ModelYaml>& yaml,
                             const Stage& stage, Catalog& catalog);

// Checks the tensors against model.yaml: the shapes that the family's table
// gives, and the number of layers. Without its last data-parallel file or its
// last pipeline stage a checkpoint has no gap, but is not whole. Throws
// input_error. Does nothing if --family names another family than the file.
void check_config(const formats::ReadOptions& options, const ModelYaml& yaml,
                  const Catalog& catalog);

// A family that names and shapes prove, and the config fields that they prove.
struct Inferred {
  std::string family;
  families::Config config;
  std::string why;
};
// `tp` parts hold each tensor. Decoder-only models:
//   qwen    q_proj has a bias (and output_proj has none), or q_norm is as
//           wide as a head
//   olmo    q_norm is as wide as all heads
//   llama   the embedding is cut along dimension 1: mistral, which has the
//           same names, keeps it whole
//   gemma3n has altup and laurel modules
// Nothing is inferred from equal bytes or from what is usual.
std::optional<Inferred> infer_family(const Stage& stage, const Catalog& catalog,
                                     uint32_t tp, uint32_t dp);

// The dimension along which `tp` ranks hold the embedding, if its width
// compared with a norm's shows it.
std::optional<uint32_t> embedding_dim(const Stage& stage,
                                      const Catalog& catalog, uint32_t tp,
                                      uint32_t dp);

}  // namespace ckpt::fairseq2
