// SPDX-License-Identifier: Apache-2.0
// The ledger of facts: whatever changes a model's function, in every dialect.
// For each fact, facts.json has an expression per dialect, and what its absence
// means there; hf_defaults.json has the defaults of transformers' classes.
//
//   config.json     rope_scaling {"rope_type": "llama3", "factor": 32, …} ┐
//   Megatron args   use_rope_scaling, rope_scaling_factor 32              ├ one
//   params.json     use_scaled_rope, rope_scaling_factor 32               ┘
//                                                            rope_type llama3
//                                                            rope_factor 32
//
// A generated configuration is read back: facts that then differ could not be
// said, and the conversion is refused.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/config/values.h"
#include "models/numbers.h"

namespace ckpt::families {

struct Fact {
  Json value;          // null or false: the model lacks it
  std::string source;  // "config.json rope_theta"
  bool weak = false;   // the function is the same without it
};
using Facts = std::map<std::string, Fact>;

// True if the ledger has the family.
bool in_ledger(const Family& family);

// The facts that a configuration states in one dialect ("hf", "mcore", "meta",
// "fairseq2", "olmo_core"). Facts that the dialect can't express are missing.
// Empty if the ledger does not have the family.
Facts read_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Values& values,
                 const Overrides& overrides = {});

// The facts of a checkpoint, from its own configuration or the config.json
// beside it. Empty if there is none, or if its family is unknown.
Facts facts_of(const Catalog& catalog);
// The same from transformers' config.json in or beside a checkpoint, plus
// "config.KEY" for keys that the model's class reads and no fact covers.
Facts config_facts_of(const Catalog& catalog);

struct FactDifference {
  std::string name;
  Json a, b;
  std::string source_a, source_b;
};
// Facts that both have and that differ.
std::vector<FactDifference> differing(const Facts& a, const Facts& b);
// The same without facts that the ledger calls near in the dialect `side`: an
// epsilon that fairseq2's code fixes, and another that is as small.
std::vector<FactDifference> differing(const Facts& a, const Facts& b,
                                      const std::string& side);

// Throws unfaithful_error, with both values and their places, unless a
// checkpoint's own configuration and the config.json beside it agree.
void check_agreement(const Facts& own, const Facts& beside,
                     const std::string& side, const std::string& path);

// What a configuration says only approximately, and what it does not say.
struct Unsaid {
  std::vector<FactDifference> near, allowed;
};
// Makes `table`, a configuration in the dialect `side`, say the facts of the
// source: adds, changes and removes keys. Throws unfaithful_error for
// everything that it can't say and no glob of `allow` matches. `what`: the
// table's name in messages.
Unsaid say_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Facts& facts,
                 const std::string& what, const std::vector<std::string>& allow,
                 Json& table);

// Facts in Megatron's args that no argument of Megatron expresses: they have
// ckpt's own names there, for the way back, and a GPTModel built from the args
// is another model. `b` of each is what Megatron can say.
std::vector<FactDifference> own_args(const Json& args);

// What builds a model from Megatron's args: "GPTModel", "HybridModel",
// "Megatron-Bridge", "code of your own"; "" for an unknown family. For each
// fact that GPTModel lacks, `a` is the model's value and `b` GPTModel's.
// `unbuilt`: nothing known builds it, so these facts are refused, except those
// matching the globs `warned`.
struct MegatronModel {
  std::string program;
  std::vector<FactDifference> lacks;
  bool unbuilt = false;
  std::vector<std::string> warned;
};
MegatronModel megatron_model(const Family& family);
// For a target written for Megatron.
MegatronModel megatron_model(const Catalog& target);

// True if --allow-unsaid names the fact.
bool is_allowed(const std::vector<std::string>& globs, const std::string& fact);

// The flags that Megatron's training needs beside --use-checkpoint-args, which
// does not read them from the args: {"--norm-epsilon", "1e-06", …}.
std::vector<std::string> load_flags(const Catalog& target);
// What no flag sets in its GPTModel: {"softmax_scale": 0.0625, …}. The code
// that builds the model sets it.
Json load_code(const Catalog& target);

// The keys of a configuration in one dialect that are neither facts nor known
// to be inert: "block.layer_norm.frobnicate".
std::vector<std::string> unknown_keys(const Family& family,
                                      const std::string& side,
                                      const Json& config);

// Keys of a config.json that transformers' class reads and that change the
// model, but that no fact covers: "config.layer_norm_elementwise_affine".
Facts other_facts(const Family& family, const Values& config);

// Keys of a config.json whose value differs from the one (or ones) that all
// models of the family have: "says" in its traits. `b` of each has those.
std::vector<FactDifference> denied_keys(const Family& family,
                                        const Json& config);

// A value as messages show it: 32.0, "yarn", none.
std::string shown_fact(const Json& value);

}  // namespace ckpt::families
