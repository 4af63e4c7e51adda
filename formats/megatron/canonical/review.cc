// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/canonical/review.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/canonical/names.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/spelling.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/job_args.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kDialect = "mcore";
constexpr std::string_view kLanguage = "language_model.";

bool is_megatron(const Catalog& catalog) {
  return catalog.format.starts_with("megatron_");
}

// Files of other formats don't mark the optimizer; its names do.
void recognise_states(Catalog& catalog, const KeyList& keys) {
  for (size_t i = 0; i < keys.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    const Key& key = keys[i];
    if (key.state.empty()) continue;
    tensor.kind = Kind::optim;
    tensor.param = key.model;
    tensor.state = key.state;
  }
}

bool is_model(const Tensor& tensor, const Key& key) {
  return tensor.kind == Kind::model && key.state.empty();
}

void check_names(const Catalog& catalog, const KeyList& keys) {
  constexpr size_t kShown = 6;
  const std::set<std::string> odd = not_canonical(catalog, keys);
  if (odd.empty()) return;
  std::vector<std::string> shown;
  for (const std::string& name : odd)
    if (shown.size() < kShown) shown.push_back(text::printable(name));
  throw unfaithful_error({catalog.path, shown.front()},
                         "{} tensors are not parameters of Megatron's modules: "
                         "{}{}",
                         odd.size(), fmt::join(shown, ", "),
                         odd.size() > kShown ? ", …" : "")
      .with_hint("--exclude GLOB leaves them out");
}

// What the args say, what shapes say, and what was asked for.
Facts facts_for(const Catalog& catalog, const KeyList& keys,
                const Layout& layout) {
  Facts facts = facts_of(catalog);
  const Wanted wanted = wanted_of(layout);
  const bool apart = facts.etp && facts.etp != facts.tp;
  if (!apart) facts.etp.reset();
  if (wanted.etp != 0) facts.etp = wanted.etp;
  if (wanted.vocab_multiple != 0) facts.vocab_multiple = wanted.vocab_multiple;
  if (wanted.vocab_size != 0) facts.vocab_size = wanted.vocab_size;
  if (!wanted.transformer_impl.empty())
    facts.local_spec = wanted.transformer_impl == "local";
  facts.tp = layout.topology.tp;
  facts.pp = layout.topology.pp;
  facts.ep = layout.topology.ep;
  infer_facts(catalog.tensors, keys, facts);
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.name == "embedding.word_embeddings.weight" &&
        tensor.shape.size() == 2 && !facts.hidden_size)
      facts.hidden_size = tensor.shape[1];
  return facts;
}

// Gives the tensors' new keys.
KeyList spell_local(Catalog& catalog, const KeyList& keys) {
  const Spelling spelling(catalog, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    if (tensor.kind == Kind::model) {
      tensor.name = spelling.local(tensor.name, keys[i]);
    } else if (tensor.kind == Kind::optim && !tensor.param.empty()) {
      tensor.param = spelling.local(tensor.param, parse_key(tensor.param));
      tensor.name =
          fmt::format("optimizer.state.{}.{}", tensor.state, tensor.param);
    }
  }
  return keys_of(catalog.tensors);
}

// Beside towers the language model has its own name.
void wrap_language(Catalog& catalog) {
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim && !tensor.param.empty()) {
      if (parse_key(tensor.param).rooted)
        tensor.param = std::string(kLanguage) + tensor.param;
      tensor.name =
          fmt::format("optimizer.state.{}.{}", tensor.state, tensor.param);
    } else if (parse_key(tensor.name).rooted) {
      tensor.name = std::string(kLanguage) + tensor.name;
    }
  }
}

// {"format": "pt"} of a safetensors file says nothing about the model.
void drop_container_mark(Catalog& catalog) {
  std::erase_if(catalog.objects, [](const Object& object) {
    if (object.name != "__metadata__" || !object.document) return false;
    const auto pairs = object.document->as_pairs(object.node);
    return pairs && pairs->size() == 2 &&
           object.document->find(object.node, "format") != pickle::kNoId;
  });
}

}  // namespace

bool speaks_canonical(const Catalog& source) {
  if (is_megatron(source)) return false;
  if (source.dialect == kDialect) return true;
  if (std::ranges::none_of(source.tensors, [](const Tensor& tensor) {
        const Key key = parse_key(tensor.name);
        return is_model(tensor, key) && key.rooted;
      }))
    return false;
  if (std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
        const Key key = parse_key(tensor.name);
        return is_model(tensor, key) && !is_canonical(tensor.name, key);
      }))
    return false;
  Catalog names;  // not_canonical looks at kinds, which names may decide
  for (const Tensor& tensor : source.tensors)
    if (is_model(tensor, parse_key(tensor.name)))
      names.tensors.push_back({.name = tensor.name});
  return not_canonical(names, keys_of(names.tensors)).empty();
}

Facts settle_canonical(Catalog& source, const Layout& layout) {
  locate(source);
  load_objects(source);
  drop_container_mark(source);
  KeyList keys = keys_of(source.tensors);
  recognise_states(source, keys);
  check_names(source, keys);
  Facts facts = facts_for(source, keys, layout);
  const uint64_t rows = vocabulary_rows(source);
  if (!facts.vocab_size && rows != 0) facts.vocab_size = rows;
  ask_vocabulary(source, facts, layout, true);
  make_job_args(source, facts, layout);
  if (facts.local_spec == true) keys = spell_local(source, keys);
  for (size_t i = 0; i < keys.size(); ++i)
    if (Tensor& tensor = source.tensors[i]; tensor.kind != Kind::other)
      tensor.tp = tp_rule(keys[i], facts);
  const bool towers = std::ranges::any_of(keys, &Key::tower);
  sort_modules(source, keys, facts.local_spec == true);
  if (towers) wrap_language(source);
  source.dialect = kDialect;
  return facts;
}

void refuse_spelling(const Catalog& source, const Layout& layout) {
  const std::string asked = wanted_of(layout).transformer_impl;
  if (asked.empty()) return;
  throw usage_error({source.path, {}},
                    "--transformer-impl {}: what {} becomes in {} keeps the "
                    "names that it has",
                    asked, source.format, layout.format)
      .with_hint(
          "names are spelled anew for models of other dialects, and "
          "from distributed checkpoints to ranks' files");
}

std::optional<std::string> canonical_directory(const Catalog& source) {
  if (is_megatron(source) || source.dialect != kDialect) return std::nullopt;
  for (const Object& object : source.objects) {
    if (object.name != "iteration" || !object.document) continue;
    const auto number = object.document->as_int(object.node);
    if (number && *number > 0)
      return iteration_directory(std::to_string(*number));
  }
  return "release";
}

}  // namespace ckpt::megatron
