// SPDX-License-Identifier: Apache-2.0
#include "convert/config/dialects.h"

#include <algorithm>

#include "ckpt/error.h"
#include "convert/config/trainer.h"
#include "convert/config/values.h"
#include "formats/traits.h"
#include "lib/text/glob.h"

namespace ckpt::families {
namespace {

// A name that only models of one dialect have.
struct NameRow {
  std::string_view glob, dialect;
};
constexpr NameRow kNames[] = {
    {"model.layers.*.attention.wqkv.weight", "internevo"},
    {"model.layers.*.attention.wq.weight", "internevo"},
    {"model.blocks.*.mixer.Wqkv.weight", "internevo"},
    {"decoder.layers.*.self_attn.qkv_proj.weight", "metaseq"},
    {"*embedding.word_embeddings.weight", "mcore"},
    {"*decoder.layers.*self_attention.linear_*", "mcore"},
    {"*encoder.layers.*self_attention.linear_*", "mcore"},
    {"*language_model.encoder.layers.*", "mcore"},
    {"tok_embeddings.weight", "meta"},
    {"layers.*.attention.wq.weight", "meta"},
    {"*decoder_frontend.embed.weight", "fairseq2"},
    {"decoder.layers.*.self_attn.output_proj.weight", "fairseq2"},
    {"encoder*.layers.*.self_attn.output_proj.weight", "fairseq2"},
    {"blocks.*.attention.w_q.weight", "olmo_core"},
    {"blocks.*.feed_forward*", "olmo_core"},
    {"transformer.blocks.*.att_proj.weight", "olmo_legacy"},
    {"transformer.h.*.attn.qkv.weight", "litgpt"},
    {"transformer.h.*.attn.attn.weight", "litgpt"},  // of older releases
    {"0.word_embeddings.weight", "neox"},
    {"*model.embed_tokens.weight", "hf"},
    {"*model.layers.*", "hf"},
    {"transformer.h.*", "hf"},
    {"wte.weight", "hf"},
    {"gpt_neox.*", "hf"},
    {"bert.encoder.layer.*", "hf"},
    {"encoder.block.*.SelfAttention.*", "hf"},
};

// The longest part of a glob that stands for itself. Looking for it first takes
// a tenth of the time of matching: most of 47,400 names have none of these.
std::string_view literal_of(std::string_view glob) {
  std::string_view longest;
  while (!glob.empty()) {
    const size_t end = std::min(glob.find('*'), glob.size());
    if (end > longest.size()) longest = glob.substr(0, end);
    glob.remove_prefix(std::min(end + 1, glob.size()));
  }
  return longest;
}

}  // namespace

std::string_view dialect_of_format(std::string_view format) {
  return formats::traits_of(format).dialect;
}

std::string_view owner_of(std::string_view dialect) {
  if (dialect == "mcore") return "Megatron";
  if (dialect == "olmo_core") return "OLMo-core";
  if (dialect == "olmo_legacy") return "OLMo";
  if (dialect == "vllm") return "vLLM";
  if (dialect == "internevo") return "InternEvo";
  if (dialect == "meta") return "Meta";
  if (dialect == "gguf") return "llama.cpp";
  if (dialect == "neox") return "GPT-NeoX";
  return dialect;
}

std::string_view dialect_of(const Catalog& catalog) {
  const formats::Traits& traits = formats::traits_of(catalog.format);
  const auto dialect = traits.dialect;
  // Already converted: by into_dialect, or unfused from vLLM's.
  const bool changed = !catalog.dialect.empty() && catalog.dialect != dialect;
  const bool open = traits.mixed_dialects || changed;
  if (!dialect.empty() && !open) return dialect;
  for (const NameRow& row : kNames) {
    const text::Glob glob{std::string(row.glob)};
    const std::string_view literal = literal_of(row.glob);
    const bool any = std::ranges::any_of(catalog.tensors, [&](const Tensor& t) {
      return t.kind == Kind::model && t.name.find(literal) != t.name.npos &&
             glob.matches(t.name);
    });
    if (any) return row.dialect;
  }
  if (catalog.dialect == "hf") return "hf";
  return {};
}

std::string foreign_prefix(const Catalog& catalog) {
  // One name of each dialect that begins with nothing.
  constexpr std::string_view kFirst[] = {"tok_embeddings.weight",
                                         "embedding.word_embeddings.weight",
                                         "decoder_frontend.embed.weight",
                                         "transformer.h.0.attn.qkv.weight",
                                         "transformer.h.0.attn.attn.weight",
                                         "0.word_embeddings.weight"};
  // InternEvo's names begin with "model.", as Meta's do in some files.
  if (TrainerConfig::of(dialect_of(catalog))) return {};
  std::string prefix;
  for (const Tensor& tensor : catalog.tensors)
    for (const std::string_view first : kFirst)
      if (tensor.kind == Kind::model && tensor.name.size() > first.size() &&
          tensor.name.ends_with(first))
        prefix = tensor.name.substr(0, tensor.name.size() - first.size());
  const bool all = std::ranges::all_of(catalog.tensors, [&](const Tensor& t) {
    return t.kind != Kind::model || t.name.starts_with(prefix);
  });
  // Megatron's own: the models before Megatron-Core, and those with towers.
  constexpr std::string_view kLanguage = "language_model.";
  if (prefix.ends_with(kLanguage))
    prefix.resize(prefix.size() - kLanguage.size());
  return all && prefix.ends_with('.') ? prefix : "";
}

namespace {

// The family of that name in `from`; null if there is none.
std::shared_ptr<const Family> family_in(const Json& from, const char* key) {
  if (!from.is_object()) return nullptr;
  const Json name = from.value(key, Json());
  if (!name.is_string() || !Family::exists(name.get<std::string>()))
    return nullptr;
  return Family::by_name(name.get<std::string>());
}

// The family that ckpt noted in Megatron's args.
std::shared_ptr<const Family> family_of_args(const Catalog& source) {
  return family_in(values_of(source, "mcore").values, "ckpt_family");
}

// The family that ckpt noted in OLMo-core's configuration, which names none.
std::shared_ptr<const Family> noted_family(const Catalog& source) {
  const Json config = values_of(source, "olmo_core").values;
  return config.is_object() ? family_in(config.value("ckpt", Json()), "family")
                            : nullptr;
}

}  // namespace

std::shared_ptr<const Family> configured_family(const Catalog& source) {
  try {
    return Family::for_config(values_of(source, "hf").values);
  } catch (const Error&) {
    return nullptr;  // who needs the configuration says what is wrong with it
  }
}

NamedFamily named_family(const Catalog& source) {
  const std::string_view from = dialect_of(source);
  if (from == "mcore") {
    const auto family = family_of_args(source);
    return {family, "args say ckpt_family", family ? family->name() : ""};
  }
  if (from == "olmo_core") {
    const auto family = noted_family(source);
    return {family, "config.json says ckpt.family",
            family ? family->name() : ""};
  }
  if (from != "fairseq2") return {};
  const Values yaml = values_of(source, "fairseq2");
  return {Family::for_fairseq2(yaml.family, yaml.values),
          yaml.source + " says model_family", yaml.family};
}

std::shared_ptr<const Family> find_family(const Catalog& source,
                                          const TranslateOptions& options) {
  if (!options.family_file.empty())
    return Family::from_file(options.family_file);
  const bool native = dialect_of_format(source.format) == "fairseq2" ||
                      source.dialect == "fairseq2";
  const auto known = [&](const std::string& name) {
    const Values values = values_of(source, native ? "fairseq2" : "hf");
    std::shared_ptr<const Family> family;
    if (native) family = Family::for_fairseq2(name, values.values);
    if (!family && Family::exists(name)) family = Family::by_name(name);
    // olmo3 is a model type of OLMo 2's family.
    if (!family) family = Family::for_config({{"model_type", name}});
    if (family && !native && !family->fits_text(values.values)) family.reset();
    return family;
  };
  if (!options.family.empty()) {
    auto family = known(options.family);
    return family ? family : Family::by_name(options.family);
  }
  if (!options.config_from.empty())
    if (auto family = Family::for_config(
            values_of_file(options.config_from, "hf").values))
      return family;
  if (const Values hf = values_of(source, "hf"); !hf.source.empty())
    if (auto family = Family::for_config(hf.values)) return family;
  if (auto family = family_of_args(source)) return family;
  if (dialect_of_format(source.format) == "olmo_core")
    if (auto family = noted_family(source)) return family;
  if (source.family.empty()) return nullptr;
  return known(source.family);
}

}  // namespace ckpt::families
