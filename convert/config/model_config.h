// SPDX-License-Identifier: Apache-2.0
// What a checkpoint says about its model besides tensors, in one dialect and in
// another: config.json, Megatron's args, params.json, model.yaml.
#pragma once

#include <optional>
#include <string>

#include "convert/config/facts.h"
#include "convert/options.h"

namespace ckpt::families {

class Configuration {
 public:
  // `from`: the source's dialect. Throws input_error for a damaged one.
  Configuration(const Catalog& source, std::shared_ptr<const Family> family,
                std::string from, const TranslateOptions& options);

  // The source's numbers, for the rules of its dialect; those of
  // --config-from's config.json if the source has no configuration.
  const Numbers& numbers(const Dialect& dialect);
  // The same numbers as config.json would have them, for the rules of the
  // target's dialect.
  const Numbers& hf_numbers(const Dialect& dialect);

  // What the source's configuration says.
  const Facts& facts() const { return facts_; }

  // Replaces the catalog's configuration by one in the target's dialect, and
  // notes in the assumptions which numbers were used.
  void finish(Catalog& catalog) const;

 private:
  void read_all_facts(const Catalog& source);
  void settle_vocabulary();
  void note_unread(Catalog& catalog) const;
  void correct_kept(Catalog& catalog) const;
  void complete(const Dialect& dialect);
  DType dtype_of(const Catalog& catalog) const;
  Json changed_by_set() const;
  Json hf_config(const Catalog& catalog) const;
  Json nested(Json config) const;
  void write_hf(Catalog& catalog) const;
  void write_args(Catalog& catalog) const;
  void write_params(Catalog& catalog) const;
  void write_yaml(Catalog& catalog) const;
  // Makes the target's configuration say the facts; warns of allowed facts that
  // it can't say.
  std::vector<FactDifference> say(const std::string& side,
                                  const std::string& what, Json& table,
                                  Catalog& catalog) const;
  void check_own_args(const Json& args, Catalog& catalog) const;
  void note_near(Catalog& catalog, const FactDifference& one,
                 const char* program) const;
  void write_olmo(Catalog& catalog) const;
  Json token_ids() const;
  void check_told(const Catalog& source) const;
  void check_trainer(const Catalog& source);
  void note_keys(const Catalog& source, const std::string& file,
                 const std::vector<std::string>& keys);
  void note_unknown(const Catalog& source, const std::string& side,
                    const Values& values);
  void check_denied(const Catalog& source, const Values& values);

  std::shared_ptr<const Family> family_;
  const std::string from_;
  const TranslateOptions& options_;
  Values own_;      // the source's, of its dialect
  Values carried_;  // config.json beside it, or from --config-from
  Values trainer_;  // what its trainer's own configuration amounts to
  Facts facts_;     // what either of them says
  std::vector<std::string> unknown_;    // keys of config.json
  std::vector<FactDifference> unsaid_;  // what config.json need not say
  std::vector<FactDifference> near_;    // what it says nearly
  Json table_;  // hf_config of the source's dialect, or null
  std::optional<Numbers> in_, out_;
};

}  // namespace ckpt::families
