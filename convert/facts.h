// SPDX-License-Identifier: Apache-2.0
// The ledger of facts: what changes the function of a model, whatever dialect
// says it. facts.json has one expression a dialect for each, with what absence
// means there; hf_defaults.json has the defaults of transformers' classes.
//
//   config.json     rope_scaling {"rope_type": "llama3", "factor": 32, …} ┐
//   Megatron args   use_rope_scaling, rope_scaling_factor 32              ├ one
//   params.json     use_scaled_rope, rope_scaling_factor 32               ┘
//                                                            rope_type llama3
//                                                            rope_factor 32
//
// A configuration that is made from another is read back: what then differs
// was not said, and the conversion is refused.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/values.h"
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

// What a configuration says in one dialect ("hf", "mcore", "meta", "fairseq2",
// "olmo_core"). Facts that the dialect has no way to say are not in it. Empty
// if the ledger does not have the family.
Facts read_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Values& values,
                 const Overrides& overrides = {});

// Of a checkpoint: its own configuration, or the config.json beside it. Empty
// if there is none, or its family is not known.
Facts facts_of(const Catalog& catalog);
// Of the config.json of transformers in or beside a checkpoint: the same, and
// as "config.KEY" what the class of the model reads and no fact is made of.
Facts config_facts_of(const Catalog& catalog);

struct FactDifference {
  std::string name;
  Json a, b;
  std::string source_a, source_b;
};
// Those that both have and that are not the same.
std::vector<FactDifference> differing(const Facts& a, const Facts& b);
// The same without those that the ledger calls near in the dialect `side`: an
// epsilon that fairseq2's code fixes, and another that is as small.
std::vector<FactDifference> differing(const Facts& a, const Facts& b,
                                      const std::string& side);

// Throws unfaithful_error, with both values and where they stand, unless a
// checkpoint's own configuration and the config.json beside it agree.
void check_agreement(const Facts& own, const Facts& beside,
                     const std::string& side, const std::string& path);

// What a configuration says only nearly, and what not at all.
struct Unsaid {
  std::vector<FactDifference> near, allowed;
};
// Makes `table`, a configuration in the dialect `side`, say the facts of the
// source: keys are added, changed and taken away. Throws unfaithful_error for
// all that it can't say and that no glob of `allow` matches. `what`: the
// table's name in messages.
Unsaid say_facts(const std::shared_ptr<const Family>& family,
                 const std::string& side, const Facts& facts,
                 const std::string& what, const std::vector<std::string>& allow,
                 Json& table);

// Facts of Megatron's args that no argument of Megatron's says: they have names
// of ours there, for the way back, and a GPTModel that is built from the args
// is another model. `b` of each is what Megatron can say.
std::vector<FactDifference> own_args(const Json& args);

// What builds a model from Megatron's args: "GPTModel", "HybridModel",
// "Megatron-Bridge", "code of your own"; "" of a family that is not known. Of
// what a GPTModel lacks for the model, `a` is what the model has and `b` what
// GPTModel has. `unbuilt`: nothing that is known builds it, so what it lacks is
// refused, but for those of the globs `warned`.
struct MegatronModel {
  std::string program;
  std::vector<FactDifference> lacks;
  bool unbuilt = false;
  std::vector<std::string> warned;
};
MegatronModel megatron_model(const Family& family);
// Of what was written for Megatron.
MegatronModel megatron_model(const Catalog& target);

// True if --allow-unsaid names the fact.
bool is_allowed(const std::vector<std::string>& globs, const std::string& fact);

// The flags that Megatron's training needs beside --use-checkpoint-args, which
// does not read them from the args: {"--norm-epsilon", "1e-06", …}.
std::vector<std::string> load_flags(const Catalog& target);
// What no flag says to its GPTModel: {"softmax_scale": 0.0625, …}. Whoever
// builds the model sets it in code.
Json load_code(const Catalog& target);

// The keys of a configuration in one dialect that are not facts and not known
// to change nothing: "block.layer_norm.frobnicate".
std::vector<std::string> unknown_keys(const Family& family,
                                      const std::string& side,
                                      const Json& config);

// Keys of a config.json that transformers' class reads, that change the model
// and that no fact is made of: "config.layer_norm_elementwise_affine".
Facts other_facts(const Family& family, const Values& config);

// Keys of a config.json that have one value (or some) in all models of the
// family, and another here: "says" of its traits. `b` of each are those.
std::vector<FactDifference> denied_keys(const Family& family,
                                        const Json& config);

// As a message shows it: 32.0, "yarn", none.
std::string shown_fact(const Json& value);

}  // namespace ckpt::families
