// SPDX-License-Identifier: Apache-2.0
// GPT-NeoX on DeepSpeed: how its modules are cut (models/families/neox.json).
//
//   TAG/configs/*.yml       all of the run's, "-" in keys is "_"
//      /layer_00-…          word_embeddings
//      /layer_02-… to L+1   layers; 1 and L+2 are functions, without a file
//      /layer_L+3-…         norm
//      /layer_L+4-…         final_linear, unless it is tied
//
// Without pipelines the same is in mp_rank_MM, as "sequential.N.…".
//
// Each rank adds a bias of its own behind a matrix that is cut by rows. With
// gpt_j_residual it does so before the ranks' outputs are added up: the model's
// bias is the sum. Otherwise it does so afterwards, and the ranks have copies.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "formats/deepspeed/apart.h"
#include "formats/deepspeed/model_states.h"
#include "models/config.h"

namespace ckpt::deepspeed {

// The files of a tag's directory as one; empty without any. Throws input_error
// for a key that two of them have.
families::Config neox_config(const std::string& directory);

class Neox {
 public:
  // `set`: --set, which says what no file does.
  Neox(const std::string& directory, const ModelRank& first,
       const std::map<std::string, std::string>& set);

  // True if a layer, or a model that is not cut into layers, is NeoX's.
  static bool is_one(const Layers& layers, const ModelRank& first);

  // ZeRO's name of a tied embedding, "tied_modules.embed.…", becomes that of
  // its module, as in the layer's file.
  static void name_tied(std::vector<Column>& columns);

  // Throws unfaithful_error for a bias that nobody says the meaning of.
  Said rule(const std::string& name, const Shape& local, uint64_t tp) const;
  // Throws LostFile for a layer that is in no file.
  void check_layers(const Layers& layers,
                    const std::vector<Column>& columns) const;

 private:
  std::optional<uint64_t> number(const char* key) const;
  Said row_bias(const std::string& name) const;
  Said projection(const Shape& local, uint64_t tp) const;

  const std::string directory_;
  families::Config config_;
  std::optional<uint64_t> layers_;
  std::optional<bool> parallel_residual_;
  bool untied_ = false;
};

}  // namespace ckpt::deepspeed
