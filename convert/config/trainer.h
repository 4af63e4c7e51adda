// SPDX-License-Identifier: Apache-2.0
// What a training code writes about its model, as transformers says the same.
// Each FILE.json of models/families with the schema ckpt-config/1 is a table:
// where the numbers are, and which config.json they amount to.
//
//   litgpt       model_config.yaml           n_layer: 2, mlp_class_name: …
//   olmo_legacy  config.yaml, "model" in it  d_model: 32, n_layers: 2 …
//   internevo    model_config.pt             num_layers, no_bias …
//   metaseq      cfg.model in each file      decoder_layers …
//   neox         configs/*.yml, all of them  num-layers, norm, pos-emb …
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"
#include "models/numbers.h"

namespace ckpt::families {

class TrainerConfig {
 public:
  // Null if the dialect has no table.
  static const TrainerConfig* of(std::string_view dialect);
  // Of the dialect that such names are of, with whatever stands before them.
  static const TrainerConfig* of_names(const Catalog& catalog);

  const std::string& dialect() const { return dialect_; }
  // Whose it is, for messages: "litgpt".
  const std::string& owner() const { return owner_; }
  // Whether such names are written, too.
  bool is_written() const { return table_.value("written", false); }
  // The name of a YAML file beside the checkpoint, or "".
  const std::string& file() const { return file_; }
  // The name of a value of the checkpoint, or "".
  const std::string& object() const { return object_; }
  // For messages: "model_config.yaml".
  const std::string& source() const { return file_.empty() ? object_ : file_; }
  // Whether the file is several, which the format's reader puts together.
  bool is_several() const { return file_.find('*') != file_.npos; }

  // The numbers in a YAML file; null if another program's has that name.
  Json numbers_of(const std::string& text, const std::string& path) const;
  // … and in a value of the checkpoint; null if it is none of its owner's.
  Json numbers_in(const pickle::Document& document, pickle::Id value) const;

  struct Said {
    Json config;  // config.json
    Json told;    // what the dialect's rules need besides
  };
  // `shapes`: of the checkpoint's tensors, which say what `numbers` leave open.
  // Throws unfaithful_error for what no model of transformers that is known
  // computes; `path` is for messages.
  Said read(const Json& numbers, const Catalog& shapes,
            const std::string& path) const;
  // The keys of Said::told, and what each says: --set gives those that are not
  // there.
  std::map<std::string, std::string> told_by() const;
  // False if the numbers are not enough for a config.json: transformers would
  // take its defaults.
  bool is_whole(const Json& config) const;
  // Whether what the numbers leave open may be said elsewhere.
  bool is_partial() const;
  // Keys that are not known.
  std::vector<std::string> unknown(const Json& numbers) const;

 private:
  std::vector<std::string> needs() const;  // keys of config.json
  explicit TrainerConfig(const std::string& name);
  static const std::vector<TrainerConfig>& all();

  Json table_;
  std::string dialect_, owner_, file_, object_;
};

// The names of the values in which such numbers are.
std::vector<std::string> trainer_config_objects();

}  // namespace ckpt::families
