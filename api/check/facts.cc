// SPDX-License-Identifier: Apache-2.0
#include "api/check/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/check/explain.h"
#include "api/edit/tied.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/dialects.h"
#include "convert/config/values.h"
#include "convert/quantized/config.h"
#include "convert/quantized/quantized.h"
#include "formats/peft/settings.h"
#include "lib/text/words.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/prove/prove.h"

namespace ckpt::library {

families::Facts known_facts(const Catalog& catalog, const Engine& engine) {
  try {
    return families::facts_of(catalog);
  } catch (const Error& error) {
    engine.warn(fmt::format("{}: the model's configuration is not read: {}",
                            catalog.path, error.problem()));
    return {};
  }
}

namespace {

// The facts of config.json, if there is one. Damage in it was already reported.
std::optional<families::Facts> config_facts(const Catalog& catalog) {
  try {
    families::Facts facts = families::config_facts_of(catalog);
    if (!facts.empty()) return facts;
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

// Adds the facts that differ in what either dialect can state. Where one
// dialect's code fixes a small number and the other's is as small, only warns.
void add_apart(const families::Facts& of_a, const std::string& side_a,
               const families::Facts& of_b, const std::string& side_b,
               const Engine& engine,
               std::vector<families::FactDifference>& apart) {
  const auto has = [](const std::vector<families::FactDifference>& list,
                      const std::string& name) {
    return std::ranges::count(list, name, &families::FactDifference::name) != 0;
  };
  const auto far_a = families::differing(of_a, of_b, side_a);
  const auto far_b = families::differing(of_a, of_b, side_b);
  for (families::FactDifference& one : families::differing(of_a, of_b)) {
    if (has(apart, one.name)) continue;
    if (has(far_a, one.name) && has(far_b, one.name))
      apart.push_back(std::move(one));
    else
      engine.warn(
          fmt::format("{}: {}: nearly the same", one.name, fact_text(one)));
  }
}

using Tensors = std::vector<const Tensor*>;

// True if a model that is said to be tied has an output layer of its own, which
// is then unused.
bool has_unused_head(const Catalog& catalog, const Engine& engine) {
  const Tensors heads = heads_of(catalog), embeddings = embeddings_of(catalog);
  if (heads.empty() || embeddings.empty()) return false;
  const Tensor &head = *heads.front(), &embedding = *embeddings.front();
  if (head.tie != 0 && head.tie == embedding.tie) return false;
  Catalog both = catalog;
  both.redundant = {{head, {}, embedding, "tied"}};
  locate(both);
  try {
    reshard::prove_redundant(both, plain_read(engine));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    return true;
  }
  return false;
}

// What says that the model is tied, "" if nothing does. Damage in it is
// reported elsewhere.
std::string tied_by(const Catalog& catalog) {
  try {
    const families::Facts facts = families::facts_of(catalog);
    if (const auto tied = facts.find("tied"); tied != facts.end())
      return tied->second.value == true ? tied->second.source : "";
    const families::Values config = families::values_of(catalog, "hf");
    const auto said = config.values.find("tie_word_embeddings");
    if (said != config.values.end() && *said == true)
      return config.source + " tie_word_embeddings";
  } catch (const Error&) {
    return "";
  }
  return "";
}

// Ties are weak facts: they change nothing about a head that equals the
// embedding.
void compare_ties(const Catalog& a, const Catalog& b,
                  const families::Facts& of_a, const families::Facts& of_b,
                  const Engine& engine,
                  std::vector<families::FactDifference>& all) {
  const auto x = of_a.find("tied"), y = of_b.find("tied");
  if (x == of_a.end() || y == of_b.end()) return;
  const families::Fact &one = x->second, &other = y->second;
  if (one.value == other.value || !one.value.is_boolean() ||
      !other.value.is_boolean())
    return;
  const Catalog& bound = one.value == true ? a : b;
  const Catalog& free = one.value == true ? b : a;
  const bool lacks_head =
      heads_of(free).empty() && !embeddings_of(free).empty();
  if (!lacks_head && !has_unused_head(bound, engine)) return;
  all.push_back({"tied", one.value, other.value, one.source, other.source});
}

// How codes were found, and what serves one kernel: the numbers are the same.
constexpr std::string_view kOfMaking =
    "backend batch_size block_name_to_quantize cache_block_outputs "
    "damp_percent dataset disable_exllama exllama_config "
    "global_compression_ratio max_input_length meta model_file_base_name "
    "model_name_or_path model_seqlen module_name_preceding_first_block "
    "pad_token_id quantization_status quantizer run_compressed static_groups "
    "tokenizer true_sequential use_cuda_fp16 use_exllama";

// A key of quantization_config, null if it says nothing.
families::Json said_of(const families::Json& config, const std::string& key) {
  const std::string method =
      config.value("quant_method", families::Json()).dump();
  families::Json value = config.value(key, families::Json());
  if (value == families::Json(false) || value == families::Json("") ||
      (value.is_structured() && value.empty()))
    value = nullptr;
  if (key == "checkpoint_format" && value.is_null() && method == "\"gptq\"")
    return "gptq";
  if (key != "version") return value;
  // The library's, but for AWQ.
  if (method != "\"awq\"") return nullptr;
  return value.is_null() || value == families::Json("GEMM")
             ? families::Json("gemm")
             : value;
}

// Damage in it was already reported.
families::Json said_about_codes(const Catalog& catalog) {
  try {
    return families::said_quantization(catalog);
  } catch (const Error&) {
    return nullptr;
  }
}

// The same codes and scales are other numbers, or of another model.
void compare_quantization(const Catalog& a, const Catalog& b,
                          std::vector<families::FactDifference>& apart) {
  if (families::quantized_weights(a).empty() ||
      families::quantized_weights(b).empty())
    return;
  const families::Json of_a = said_about_codes(a);
  const families::Json of_b = said_about_codes(b);
  if (!of_a.is_object() || !of_b.is_object()) return;
  families::Json keys = of_a;
  keys.update(of_b);
  for (const auto& item : keys.items()) {
    const std::string& key = item.key();
    if (text::has_word(kOfMaking, key)) continue;
    families::Json x = said_of(of_a, key), y = said_of(of_b, key);
    if (x == y) continue;
    const std::string name = "quantization_config." + key;
    apart.push_back(
        {name, std::move(x), std::move(y), "config.json", "config.json"});
  }
}

// The same factors, scaled in another way.
void compare_adapters(const Catalog& a, const Catalog& b,
                      std::vector<families::FactDifference>& apart) {
  const auto x = peft::config_of(a), y = peft::config_of(b);
  if (!x || !y) return;
  const auto add = [&](const char* name, const families::Json& of_a,
                       const families::Json& of_b) {
    if (of_a != of_b)
      apart.push_back({fmt::format("adapter.{}", name), of_a, of_b,
                       std::string(peft::kConfigFile),
                       std::string(peft::kConfigFile)});
  };
  add("peft_type", x->type, y->type);
  add("r", x->rank, y->rank);
  add("lora_alpha", x->alpha, y->alpha);
  add("use_rslora", x->rslora, y->rslora);
  add("use_dora", x->dora, y->dora);
  add("rank_pattern", x->ranks, y->ranks);
  add("alpha_pattern", x->alphas, y->alphas);
  add("hindrance", x->hindrance, y->hindrance);
}

}  // namespace

std::vector<families::FactDifference> differing_facts(const Catalog& a,
                                                      const Catalog& b,
                                                      const Engine& engine) {
  const families::Facts of_a = known_facts(a, engine);
  const families::Facts of_b = known_facts(b, engine);
  std::vector<families::FactDifference> apart;
  compare_ties(a, b, of_a, of_b, engine, apart);
  const std::string side_a(families::dialect_of(a));
  const std::string side_b(families::dialect_of(b));
  add_apart(of_a, side_a, of_b, side_b, engine, apart);
  // A config.json of transformers beside them describes the model, too.
  const auto config_a = config_facts(a);
  const auto config_b = config_facts(b);
  if (config_a && config_b)
    add_apart(*config_a, "hf", *config_b, "hf", engine, apart);
  compare_quantization(a, b, apart);
  compare_adapters(a, b, apart);
  return apart;
}

std::optional<Problem> unlike_tied_head(const Catalog& catalog,
                                        const Engine& engine) {
  // Of several models in one, a head's own embedding isn't known. Codes are
  // judged with what belongs to them.
  const Tensors heads = heads_of(catalog), embeddings = embeddings_of(catalog);
  if (heads.size() != 1 || embeddings.size() != 1 ||
      !reshard::is_float(heads[0]->dtype))
    return std::nullopt;
  const std::string tied = tied_by(catalog);
  if (tied.empty() || !has_unused_head(catalog, engine)) return std::nullopt;
  return damage(
      "configuration", {catalog.path, heads[0]->name},
      "{} ties it to {}, and the two differ: transformers 4 and vLLM compute "
      "with the embedding alone, transformers 5 with both; if the head was "
      "trained, `ckpt convert SRC DST --to hf --untie` says so in config.json",
      tied, embeddings[0]->name);
}

std::string fact_text(const families::FactDifference& fact) {
  return fmt::format("{} ({}) and {} ({})", families::shown_fact(fact.a),
                     fact.source_a, families::shown_fact(fact.b),
                     fact.source_b);
}

std::optional<uint64_t> vocabulary_of(const Catalog& catalog) {
  for (const std::string_view side :
       {families::dialect_of(catalog), std::string_view("mcore"),
        std::string_view("hf"), std::string_view("fairseq2"),
        std::string_view("meta"), std::string_view("olmo_core")}) {
    try {
      if (side.empty()) continue;
      const families::Json values = families::values_of(catalog, side).values;
      const auto found = values.find("vocab_size");
      if (found != values.end() && found->is_number_unsigned())
        return found->get<uint64_t>();
    } catch (const Error&) {
      continue;  // whatever needs a damaged configuration reports it
    }
  }
  return std::nullopt;
}

}  // namespace ckpt::library
