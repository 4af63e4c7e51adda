// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <unordered_map>

#include "api/adding.h"
#include "api/check/read_all.h"
#include "api/edit/tied.h"
#include "ckpt/adapter.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "convert/adapters/adapter.h"
#include "convert/adapters/inside.h"
#include "convert/adapters/peft_form.h"
#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/quantized/quantized.h"
#include "formats/options.h"
#include "formats/peft/settings.h"
#include "lib/text/format.h"

namespace ckpt {
namespace {

// What the changed tensors are computed from.
struct Added {
  std::list<peft::Adapter> adapters;
  library::MadeList made;
};

// A tensor made from another looks whole to the plan, whatever it is made from.
void refuse_holes(const Catalog& catalog) {
  const auto problems = validate_sharding_integrity(catalog);
  if (problems.empty()) return;
  const Problem& first = problems.front();
  throw unfaithful_error(
      {first.file.empty() ? catalog.path : first.file, first.tensor},
      "{}; nothing can be added to it", first.message)
      .with_hint("`ckpt verify` lists all of it");
}

bool is_input_embedding(std::string_view module) {
  constexpr std::array<std::string_view, 5> kNames = {
      "embed_tokens", "embed_in", "wte", "word_embeddings", "shared"};
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return std::ranges::find(kNames, last) != kNames.end();
}

// Of a class without rules, transformers' default holds: tied.
bool is_tied(const Catalog& base) {
  if (!library::heads_of(base).empty()) return false;
  const families::Facts facts = families::config_facts_of(base);
  if (const auto tied = facts.find("tied"); tied != facts.end())
    return tied->second.value == families::Json(true);
  const nlohmann::json config = formats::config_json_of(base);
  const auto said = config.find("tie_word_embeddings");
  return config.is_object() && (said == config.end() || *said == true);
}

// The modules that peft would give factors, by the base's names.
std::vector<std::string> bare_modules(const peft::Adapter& adapter,
                                      const Catalog& base, size_t& targets) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> bare;
  for (const Tensor& tensor : base.tensors) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight)) continue;
    const std::string module =
        tensor.name.substr(0, tensor.name.size() - kWeight.size());
    if (!peft::is_target(adapter.config, module)) continue;
    ++targets;
    if (!adapter.modules.contains(module)) bare.push_back(module);
  }
  return bare;
}

// The base's own copy, frozen in training, shows whether it is this base.
void check_frozen(const families::PeftForm& form, const Catalog& base) {
  std::unordered_map<std::string_view, const Tensor*> there;
  for (const Tensor& tensor : base.tensors) there[tensor.name] = &tensor;
  for (const Tensor& frozen : form.frozen) {
    const auto found = there.find(frozen.name);
    if (found == there.end() || found->second->shape == frozen.shape) continue;
    throw unfaithful_error(
        {form.catalog.path, frozen.name},
        "the adapter was trained on a base in which this is {}; here it is {}",
        to_string(frozen.shape), to_string(found->second->shape))
        .with_hint("name the base that it was trained on");
  }
}

// Codes are no numbers, and a base with holes would look whole.
void check_base(Catalog& base) {
  if (const auto codes = families::quantized_weights(base); !codes.empty())
    throw unfaithful_error({base.path, {}},
                           "{}: codes of quantized weights, to which nothing "
                           "can be added",
                           families::describe(codes))
        .with_hint(families::dequantize_hint(base));
  locate(base);
  refuse_holes(base);
}

class Addition {
 public:
  Addition(Catalog& base, const AdapterOptions& options, Added& added)
      : base_(base), options_(options), added_(added) {}

  void add(families::PeftForm form, double weight) {
    const std::string path = form.catalog.path;
    check_known(form.config);
    if (!std::isfinite(weight))
      throw usage_error({path, {}}, "--adapter-weight {}", weight);
    check_frozen(form, base_);
    for (const std::string& component : form.elsewhere)
      say(warning("adapter_elsewhere", {path, {}},
                  "its factors for \"{}\" are for another model, and this "
                  "base has none of those modules",
                  component));
    for (const std::string& line : form.catalog.assumptions)
      say(remark("adapter", {path, {}}, "{}", line));
    peft::Adapter& adapter = added_.adapters.emplace_back(
        peft::sorted(std::move(form.catalog), form.config));
    refuse_holes(adapter.catalog);
    peft::meet_base(adapter, base_);
    check_tied(adapter);
    warn_of_absent(adapter);
    check_values(adapter);
    put(adapter, weight);
    base_.assumptions.push_back(
        fmt::format("{}: added to {}: {}{}", path,
                    text::counted(adapter.modules.size(), "weight"),
                    peft::describe(adapter.config),
                    weight == 1 ? "" : fmt::format("; times {}", weight)));
    say(remark("adapter", {{}, {}}, "{}", base_.assumptions.back()));
  }

 private:
  void say(const Problem& problem) const {
    if (options_.note) options_.note(problem);
  }

  void put(peft::Adapter& adapter, double weight) {
    library::Adding adding(base_, adapter, weight, options_.allow_nonfinite,
                           added_.made);
    adding.first_file();
    for (const auto& [name, own] : adapter.bases) adding.put_whole(name, *own);
    for (const auto& [name, module] : adapter.modules)
      adding.add_module(name, module);
    for (const auto& [name, whole] : adapter.wholes)
      adding.put_whole(name, *whole);
    const std::string grown = adding.follow_tokens();
    if (!grown.empty())
      say(warning("adapter_tokens", {adapter.catalog.path, {}}, "{}", grown));
  }

  void check_known(const peft::Config& config) const {
    const std::vector<std::string>& keys = config.unknown;
    if (keys.empty()) return;
    const std::string text = text::printable(
        fmt::format("has keys that are not known: {}", fmt::join(keys, ", ")));
    if (options_.naming.strict_config)
      throw unfaithful_error({config.path, {}}, "--strict-config: {}", text)
          .with_hint("take them out if they change nothing");
    say(warning("adapter_keys", {config.path, {}},
                "{}; they may change what the adapter adds", text));
  }

  // peft changes the embedding of a tied model and leaves its head as it was
  // (huggingface/peft#2777), until merge_and_unload() adds factors to both. A
  // copy of its own replaces the embedding alone, also when it is merged; here
  // it would be the head, too, because there is one tensor for both.
  void check_tied(const peft::Adapter& adapter) const {
    const auto embeds = [](const auto& item) {
      const std::string& name = item.first;
      return is_input_embedding(
          name.ends_with(".weight")
              ? std::string_view(name).substr(0, name.size() - 7)
              : std::string_view(name));
    };
    const auto whole = std::ranges::find_if(adapter.wholes, embeds);
    const auto module = std::ranges::find_if(adapter.modules, embeds);
    const bool has_whole =
        whole != adapter.wholes.end() && !adapter.config.ties;
    if ((!has_whole && module == adapter.modules.end()) || !is_tied(base_))
      return;
    if (has_whole)
      throw unfaithful_error(
          {adapter.config.path, whole->first},
          "the base's head is tied to this embedding: peft replaces the "
          "embedding and keeps the old one as the head, and the base has one "
          "tensor for both")
          .with_hint(
              "--untie gives the base a head of its own, as peft's model has; "
              "or train with ensure_weight_tying");
    say(warning("adapter_tied", {adapter.config.path, module->first},
                "the head is tied to this embedding and changes with it, as in "
                "peft's merge_and_unload(); in training, the adapter changed "
                "the embedding alone"));
  }

  // peft warns of keys that a configuration promises and a file lacks, and goes
  // on with new factors, which add nothing, or with the base's own module.
  void warn_of_absent(const peft::Adapter& adapter) const {
    size_t targets = 0;
    if (const auto bare = bare_modules(adapter, base_, targets); !bare.empty())
      say(warning(
          "adapter_bare", {adapter.catalog.path, {}},
          "{} of {} modules that target_modules finds have no factors here: "
          "{}{}; they stay the base's",
          bare.size(), targets, text::printable(bare.front()),
          bare.size() == 1 ? ""
                           : fmt::format(" and {} more", bare.size() - 1)));
    for (const std::string& module : adapter.config.saved) {
      const auto is_in = [&](const std::string& name) {
        return ("." + name).find("." + module + ".") != std::string::npos;
      };
      // peft names both heads that a classifier may have, and no base has both.
      const bool is_other_head =
          (module == "classifier" || module == "score") &&
          std::ranges::none_of(base_.tensors, is_in, &Tensor::name);
      if (!is_other_head &&
          std::ranges::none_of(adapter.wholes, is_in,
                               [](const auto& one) { return one.first; }))
        say(warning("adapter_bare", {adapter.catalog.path, {}},
                    "modules_to_save has {}, and no tensor of it is here; it "
                    "stays the base's",
                    text::printable(module)));
    }
  }

  // Reads the adapter, which is small beside its base.
  void check_values(const peft::Adapter& adapter) const {
    Catalog copy = adapter.catalog;
    const library::Reading reading =
        library::read_all(copy, {}, {.stats = true});
    std::vector<std::string> idle;
    for (size_t i = 0; i < copy.tensors.size(); ++i) {
      const reshard::Stats& stats = reading.stats.at(i);
      const std::string& name = copy.tensors[i].name;
      if (!stats.finite()) {
        const Error error = unfaithful_error(
            {adapter.catalog.path, name}, "{} of {} values are not finite",
            stats.nans + stats.infs, stats.count);
        if (!options_.allow_nonfinite)
          throw error.with_hint(
              "take an older step of the adapter; --allow-nonfinite adds it as "
              "it is");
        say(warning("adapter_nonfinite", {{}, name}, "{}", error.problem()));
      }
      const bool last = name.find(".lora_B") != name.npos ||
                        name.find(".lora_embedding_B") != name.npos;
      if (last && stats.count != 0 && stats.zeros == stats.count)
        idle.push_back(name);
    }
    if (!idle.empty())
      say(warning(
          "adapter_idle", {adapter.catalog.path, {}},
          "{} of {} are zero in all their elements and add nothing: {}{}",
          text::counted(idle.size(), "lora_B"), adapter.modules.size(),
          text::printable(idle.front()),
          idle.size() == 1 ? ""
                           : fmt::format(" and {} more", idle.size() - 1)));
  }

  Catalog& base_;
  const AdapterOptions& options_;
  Added& added_;
};

families::TranslateOptions translate_options(const Naming& naming,
                                             const std::string& to) {
  return {.to = to,
          .family = naming.family,
          .family_file = naming.family_file,
          .config_from = naming.config_from,
          .set = {naming.set.begin(), naming.set.end()},
          .drop = {},
          .allow_missing = naming.allow_missing,
          .allow_unsaid = {},
          .dtype = {}};
}

// Adapters get transformers' names, so the base gets those first, unless it
// has names of its own.
void name_base(Catalog& base, const AdapterOptions& options) {
  const std::string_view from = families::dialect_of(base);
  if (from.empty() || from == "hf") return;
  Naming naming = options.naming;
  naming.dialect = "hf";
  base = into_dialect(std::move(base), std::string(formats::usual_container()),
                      naming);
}

families::AdapterBase ready_base(Catalog& base, const AdapterOptions& options) {
  name_base(base, options);
  if (options.naming.tied == false) library::set_tied(base, false);
  check_base(base);
  return families::base_of(base, translate_options(options.naming, "hf"));
}

}  // namespace

std::optional<AdapterInfo> adapter_of(const Catalog& catalog) {
  const auto config = peft::config_of(catalog);
  if (!config) return std::nullopt;
  AdapterInfo info{.kind = config->type,
                   .names = config->dialect,
                   .base = config->base,
                   .rank = {},
                   .alpha = {},
                   .rslora = config->rslora,
                   .dora = config->dora,
                   .targets = config->targets,
                   .saved = config->saved};
  if (config->says_rank) info.rank = config->rank;
  if (config->says_alpha) info.alpha = config->alpha;
  return info;
}

std::string_view adapter_dialect(const Catalog& catalog) {
  return families::adapter_dialect(catalog);
}

bool adapter_needs_base(std::string_view dialect) {
  return families::needs_base_numbers(dialect);
}

bool dialect_takes_adapters(std::string_view dialect) {
  return families::takes_adapters(dialect);
}

bool has_adapter_inside(const Catalog& catalog) {
  return families::has_adapter_inside(catalog);
}

AdapterHold add_adapters(Catalog& base, const std::vector<AdapterUse>& adapters,
                         const AdapterOptions& options) {
  const families::AdapterBase model = ready_base(base, options);
  const auto added = std::make_shared<Added>();
  for (const AdapterUse& use : adapters)
    Addition(base, options, *added)
        .add(families::in_peft_form(peft::open_files(use.path), model,
                                    options.alpha),
             use.weight);
  return added;
}

AdapterHold add_adapter_inside(Catalog& base, const AdapterOptions& options) {
  Catalog adapter = families::take_adapter(base);
  const families::AdapterBase model = ready_base(base, options);
  const auto added = std::make_shared<Added>();
  Addition(base, options, *added)
      .add(families::in_peft_form(std::move(adapter), model, options.alpha), 1);
  return added;
}

Catalog translate_adapter(Catalog adapter, const std::string& dialect,
                          uint64_t ranks, const AdapterOptions& options) {
  return families::translate_adapter(std::move(adapter),
                                     translate_options(options.naming, dialect),
                                     ranks, options.alpha);
}

}  // namespace ckpt
