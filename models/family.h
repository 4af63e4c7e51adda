// SPDX-License-Identifier: Apache-2.0
// A model family: how its tensors are named and arranged in each dialect. Each
// FILE.json in this folder is a family (docs/families.md has the schema);
// --family-file adds a user's own.
//
//                     hf  (the names of transformers' files)
//          ┌──────┬────┴──┬──────────┐      one Dialect each: rules that make
//        mcore   meta  fairseq2  olmo_core      its tensors from those of hf
//
// So any dialect converts to any other by way of hf.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/dtype.h"
#include "models/expr.h"
#include "models/modelopt_section.h"
#include "models/vllm_section.h"

namespace ckpt::families {

// One step from hf to the dialect: t vocab cat qkv qkv_cat qkv_gated ungroup
// rope_interleave add const index part deinterleave reshape; "copy" is none.
struct Op {
  std::string name;
  Json params = Json::object();  // {"heads": "$ng"}: expressions, or numbers
};

// How tensor-parallel ranks cut the dialect's tensor.
struct TpCut {
  std::string dim;                 // an expression
  uint32_t parts = 1;              // the dimension is cut inside each of these
  std::vector<std::string> sizes;  // expressions: the parts' extents; empty:
                                   // they are equal
  bool expert = false;             // by the expert tensor-parallel ranks
};

// One tensor of the dialect, or one for each value of the indices in `to`.
struct Rule {
  std::string to;               // "decoder.layers.{l}.mlp.router.weight"
  std::vector<std::string> hf;  // what it is made of; empty: of nothing
  std::vector<Op> ops;          // applied in order; inverted: from the last
  std::optional<TpCut> tp;      // none: every rank has all of it
  std::string when;             // an expression; "": always
  bool optional = false;        // may be missing, on either side
  bool alias = false;           // a second copy: made, but not read back
  std::optional<DType> dtype;   // pinned, whatever the model's is
  std::string each;  // an index: hf[0] stands for the list of all its values
  // "vision_tower.**" from "visual.**": all tensors whose names begin like this
  // and that no other rule has, unchanged.
  bool rest() const { return to.ends_with("**"); }
  uint32_t line = 0;  // of the family's file
};

// An expression for each side ("hf", "mcore" …), or for all: "".
using Variable = std::map<std::string, std::string, std::less<>>;

struct Dialect {
  std::string name;  // "mcore"
  std::vector<Rule> rules;
  std::vector<std::string> ignore;  // globs of names that are expected
  std::map<std::string, std::string, std::less<>> index;  // "l" -> "$L"
  std::map<std::string, Variable, std::less<>> vars;      // "$L" -> …
  // Tables (config_table() in numbers.h evaluates them), or null: the
  // dialect's own configuration from hf's, and config.json's fields from the
  // dialect's.
  Json config;
  Json hf_config;
  std::vector<std::string> notes;
  Json section;  // all of it, as the file has it
};

// The hf side.
struct HfSide {
  std::vector<std::string> model_types;
  std::vector<std::string> architectures;
  std::vector<std::string> ignore;  // globs of buffers (buffers.h)
  // Second copies that files have beside a tensor: "model.layers.61." +
  // `name` where "model.layers.61." + `beside` is.
  struct Repeat {
    std::string beside, name, of;
  };
  std::vector<Repeat> repeats;
  // Before anything else, the first `from` that a name begins with is replaced
  // by `to`.
  std::vector<std::pair<std::string, std::string>> prefixes;
  // The objects of config.json in which names are looked up; "" is the whole.
  std::vector<std::string> config_roots{""};
  // For a multimodal model: the model type of its text_config, and the keys of
  // config.json beside it.
  std::string text_type;
  std::vector<std::string> outer;
  // Conditions that config.json's numbers meet in any model that loads, and
  // what each says.
  std::vector<std::pair<std::string, std::string>> requirements;
};

class Family {
 public:
  // Throws usage_error with a suggestion for an unknown name.
  static std::shared_ptr<const Family> by_name(const std::string& name);
  static bool exists(std::string_view name);
  // --family-file. Throws usage_error "FILE:LINE:COLUMN: …".
  static std::shared_ptr<const Family> from_file(const std::string& path);
  // `source` is the file's name in messages.
  static std::shared_ptr<const Family> from_text(std::string_view text,
                                                 const std::string& source);
  // By model_type and architectures of a config.json, its text_config too.
  // Null if no family has them.
  static std::shared_ptr<const Family> for_config(const Json& config);
  // The key of config.json for which transformers' AutoConfig takes its
  // model_type for another one; "" if there is none.
  static std::string retyped_by(const Json& config);
  // By fairseq2's name (qwen is qwen2 or qwen3) and the configuration in
  // model.yaml. Null if there is no family with rules.
  static std::shared_ptr<const Family> for_fairseq2(const std::string& name,
                                                    const Json& config);
  // By model_type: one that says how vLLM arranges it. Null if there is none.
  static std::shared_ptr<const Family> for_vllm(std::string_view model_type);
  // All model types that for_vllm() finds, sorted.
  static std::vector<std::string> vllm_types();
  // All that say in which of ModelOpt's files their tensors are.
  static std::vector<std::shared_ptr<const Family>> with_modelopt();
  static std::vector<std::string> names();  // of all that come with ckpt

  const std::string& name() const { return name_; }
  const std::string& source() const { return source_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const HfSide& hf() const { return hf_; }
  // Null if the family has no such dialect, or no rules for it.
  const Dialect* dialect(std::string_view name) const;
  const std::vector<Dialect>& dialects() const { return dialects_; }
  // For the ledger of facts (convert/config/facts.h), in addition to
  // facts.json: the file's "traits", over those of the families that it
  // extends.
  const Json& traits() const { return traits_; }
  // The families that it extends, the nearest one first.
  const std::vector<std::string>& bases() const { return bases_; }
  // The fairseq2 section: tp_rules, buffers, tied, shapes … Null if fairseq2
  // does not know the family.
  const Json& fairseq2() const;
  // The vllm section; nothing if it is not known what vLLM does with the model.
  const std::optional<VllmSection>& vllm() const { return vllm_; }
  // The modelopt section; nothing if the family is not in ModelOpt's blocks.
  const std::optional<ModeloptSection>& modelopt() const { return modelopt_; }

  // True if what for_config() goes by is this family's, too (several may have
  // one model_type), or if it is the family of the text_config.
  bool fits(const Json& config) const;
  // False for a config.json whose text_config is another model's.
  bool fits_text(const Json& config) const;
  // With the first prefix replaced.
  std::string normal_name(std::string_view hf_name) const;
  // True for a name that HfSide::repeats has.
  bool repeats(std::string_view hf_name) const;
  // True for names that match `patterns` (HfSide::ignore, Dialect::ignore); *
  // matches dots, too.
  static bool ignored(std::string_view name,
                      const std::vector<std::string>& patterns);

 private:
  friend class FamilyReader;
  // The file of a built-in family; empty for others.
  static std::string_view text_of(std::string_view name);
  std::string name_;
  std::string source_;
  std::vector<std::string> notes_;
  HfSide hf_;
  std::vector<Dialect> dialects_;
  Json traits_;
  std::vector<std::string> bases_;
  std::optional<VllmSection> vllm_;
  std::optional<ModeloptSection> modelopt_;
};

}  // namespace ckpt::families
