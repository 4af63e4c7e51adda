// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/adapters/base.h"
#include "convert/adapters/gguf.h"
#include "convert/adapters/modules.h"
#include "convert/adapters/peft_form.h"
#include "convert/config/dialects.h"
#include "convert/config/gguf.h"
#include "convert/rules/mismatches.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/peft/adapter.h"
#include "formats/peft/config.h"
#include "formats/peft/names.h"
#include "formats/peft/settings.h"
#include "lib/io/file.h"
#include "models/order.h"

namespace ckpt::families {
namespace {

// What PEFT's adapter_config.json asks of Megatron-Bridge's LoRA.

// PEFT's configuration. Throws unfaithful_error for what Megatron-Bridge's LoRA
// does not compute: scaling by the root of the rank, DoRA, repeated layers.
peft::Config config_for_bridge(const Catalog& source) {
  const auto config = peft::read_config(source.path);
  if (!config)
    throw missing_error({source.path, {}}, "there is no {} beside the adapter",
                        peft::kConfigFile);
  std::string why = config->hindrance;
  if (config->rslora) why = "it is scaled by the root of the rank (use_rslora)";
  if (config->dora) why = "it has magnitudes (DoRA)";
  if (config->fan_in_fan_out) why = "its base's matrices are transposed";
  if (!why.empty())
    throw unfaithful_error({config->path, {}},
                           "Megatron-Bridge's LoRA is different: {}", why)
        .with_hint(
            "add the adapter to its base: ckpt convert BASE DST --adapter DIR");
  return *config;
}

// ", dropout=0.05" or ""
std::string dropout_text(const peft::Config& config) {
  if (config.dropout == 0) return {};
  return fmt::format(", dropout={:g}", config.dropout);
}

// lora_A is linear_in; each is a matrix.
struct Factor {
  std::string module;  // PEFT's name, without base_model.model.
  bool in = false;
};

Factor factor_of(const Catalog& source, const Tensor& tensor) {
  std::string_view name = tensor.name;
  if (name.starts_with(peft::kPrefix)) {
    name.remove_prefix(peft::kPrefix.size());
    for (const std::string_view part : {".lora_A.", ".lora_B."}) {
      const size_t at = name.rfind(part);
      if (at == name.npos) continue;
      const std::string_view rest = name.substr(at + part.size());
      if ((rest == "weight" || rest == "default.weight") &&
          tensor.shape.size() == 2)
        return {std::string(name.substr(0, at)), part[6] == 'A'};
    }
  }
  throw unfaithful_error({source.path, tensor.name},
                         "Megatron-Bridge's adapters have lora_A and lora_B of "
                         "matrices, and no place for this")
      .with_hint(
          "add the adapter to its base: ckpt convert BASE DST --adapter DIR");
}

class ToMegatron {
 public:
  ToMegatron(Catalog& source, const AdapterModules& modules,
             const TranslateOptions& options, uint64_t ranks)
      : source_(source), modules_(modules), options_(options), ranks_(ranks) {}

  void run() {
    const peft::Config config = config_for_bridge(source_);
    for (Tensor& tensor : source_.tensors) rename(tensor, config);
    check_complete();
    source_.assumptions.push_back(described(config));
  }

 private:
  void rename(Tensor& tensor, const peft::Config& config) {
    const Factor factor = factor_of(source_, tensor);
    const AdapterModule& module = modules_.of_hf(source_, factor.module);
    const uint64_t rank = tensor.shape[factor.in ? 0 : 1];
    if (rank != config.rank || peft::rank_of(config, factor.module) != rank ||
        peft::scale_of(config, factor.module, 1) !=
            static_cast<float>(config.alpha / static_cast<double>(rank)))
      throw unfaithful_error({source_.path, tensor.name},
                             "its rank ({}) or alpha is its own; "
                             "Megatron-Bridge has one of each: {} and {}",
                             rank, config.rank, config.alpha);
    const std::string_view part =
        module.fused() ? bridge_part(factor.module) : std::string_view();
    seen_.emplace(module.mcore, std::string(part), factor.in);
    tensor.name = fmt::format("{}{}{}{}{}.weight", module.mcore, kBridgeAdapter,
                              part, part.empty() ? "" : ".",
                              factor.in ? "linear_in" : "linear_out");
    tensor.tp = {};
    if (ranks_ < 2 || !megatron::is_halved_part(part, factor.in)) return;
    megatron::check_halves(source_, tensor, ranks_);
    megatron::halved(View::of(tensor), ranks_, false).into(tensor, kAnyPieces);
  }

  // Bridge's modules use all of their parts, so none may be missing.
  void check_complete() const {
    const Globs allowed(options_.allow_missing);
    for (const AdapterModule& module : modules_.all()) {
      std::vector<std::string> missing;
      size_t found = 0;
      for (const std::string& hf : module.hf)
        for (const bool in : {true, false}) {
          const std::string_view part =
              module.fused() ? bridge_part(hf) : std::string_view();
          if (seen_.contains({module.mcore, std::string(part), in}))
            ++found;
          else
            missing.push_back(hf + (in ? ".lora_A.weight" : ".lora_B.weight"));
        }
      if (found == 0 || missing.empty()) continue;
      if (std::ranges::all_of(missing, [&](const std::string& name) {
            return allowed.match(name);
          }))
        continue;
      throw unfaithful_error({source_.path, missing.front()},
                             "is missing: Megatron-Bridge's module {} needs "
                             "the adapters of all its parts",
                             module.mcore)
          .with_hint(
              "--allow-missing GLOB writes what is there, which other readers "
              "may load; or add the adapter to its base: --adapter DIR");
    }
  }

  static std::string described(const peft::Config& config) {
    return fmt::format(
        "Megatron-Bridge builds these modules with CanonicalLoRA(dim={}, "
        "alpha={:g}{})",
        config.rank, config.alpha, dropout_text(config));
  }

  Catalog& source_;
  const AdapterModules& modules_;
  const TranslateOptions& options_;
  const uint64_t ranks_;
  std::set<std::tuple<std::string, std::string, bool>> seen_;
};

void check_optimizer(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({source.path, tensor.name},
                             "optimizer state can't be carried into another "
                             "dialect")
          .with_hint("--model-only converts the adapter alone");
}

}  // namespace

std::string_view adapter_dialect(const Catalog& catalog) {
  const peft::Dialect* dialect = peft::dialect_of(catalog);
  if (dialect == nullptr) return {};
  const bool bridge = dialect->modules == peft::Modules::kMegatron;
  bool live = false;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    const auto part = peft::part_of(tensor.name);
    if (!part && bridge && !tensor.name.ends_with("_extra_state")) return {};
    live = live || (part && part->live);
  }
  if (bridge) return "mcore";
  if (dialect->name != "peft") return dialect->name;
  const bool carried = std::ranges::any_of(
      catalog.sidecars,
      [](const Sidecar& sidecar) { return sidecar.name == peft::kConfigFile; });
  if ((carried && !live) || !peft::config_of(catalog)) return "hf";
  return live ? "live" : "loose";
}

namespace {

// PEFT's own configuration describes the same factors.
bool has_peft_config(const Catalog& source) {
  return std::ranges::any_of(source.sidecars, [](const Sidecar& sidecar) {
    if (sidecar.name != peft::kConfigFile) return false;
    const std::string text =
        sidecar.text ? *sidecar.text : io::read_file(sidecar.path, 1 << 24);
    return peft::parse_config(text, sidecar.path).type == "LORA";
  });
}

void put_config(Catalog& source, const std::string& text) {
  std::erase_if(source.sidecars, [](const Sidecar& sidecar) {
    return sidecar.name == peft::kConfigFile;
  });
  Sidecar sidecar{.name = std::string(peft::kConfigFile),
                  .path = "made:" + std::string(peft::kConfigFile)};
  sidecar.text = std::make_shared<const std::string>(text);
  sidecar.size = sidecar.text->size();
  source.sidecars.push_back(std::move(sidecar));
}

// What describes a model or its ranks, and not the adapter.
void leave_objects(Catalog& source) {
  std::erase_if(source.objects, [](const Object& object) {
    return object.name == "args" || object.name == "checkpoint_version" ||
           object.name == "iteration";
  });
}

// peft makes LoKr's matrices of shapes that follow from its configuration's own
// numbers, which no other library writes.
void refuse_products(const PeftForm& form) {
  if (form.config.dialect == "peft" || form.config.type == "LORA") return;
  throw unfaithful_error({form.catalog.path, {}},
                         "{}, which has no place in PEFT's names but with "
                         "PEFT's own configuration",
                         peft::describe(form.config))
      .with_hint("add it to its base: ckpt convert BASE DST --adapter " +
                 form.catalog.path);
}

void warn_of_frozen(size_t count, Catalog& made) {
  if (count == 0) return;
  made.problems.push_back(
      warning("frozen_base", {made.path, {}},
              "{} tensors of the base, frozen in training, are left out: the "
              "adapter alone is written",
              count));
}

// Of a file that was opened by itself.
void carry_config(Catalog& source) {
  const auto config = peft::read_config(source.path);
  if (config && !has_peft_config(source))
    put_config(source, io::read_file(config->path, 1 << 24));
}

Catalog to_peft(Catalog source, const TranslateOptions& options,
                std::optional<double> alpha) {
  const bool kept = !alpha && has_peft_config(source);
  const AdapterBase base = base_of_config(source, options);
  PeftForm form = in_peft_form(std::move(source), base, alpha);
  refuse_products(form);
  const std::string text = peft_config_text(form);
  const peft::Adapter checked =
      peft::sorted(std::move(form.catalog), form.config);
  Catalog made = checked.catalog;
  if (!kept) put_config(made, text);
  leave_objects(made);
  warn_of_frozen(form.frozen.size(), made);
  return made;
}

Catalog to_gguf(Catalog source, const TranslateOptions& options,
                std::optional<double> alpha) {
  carry_config(source);
  const AdapterBase base = base_of_config(source, options);
  PeftForm form = in_peft_form(std::move(source), base, alpha);
  peft::sorted(form.catalog,
               form.config);  // refuses a factor without the other
  const size_t frozen = form.frozen.size();
  Catalog made = adapter_in_gguf(std::move(form), base);
  made.family = base.family->name();
  warn_of_frozen(frozen, made);
  return made;
}

Catalog to_megatron(Catalog source, const TranslateOptions& options,
                    uint64_t ranks) {
  carry_config(source);
  const AdapterBase base = base_of_config(source, options);
  if (!base.family || !base.family->dialect("mcore"))
    throw unfaithful_error({options.config_from, {}},
                           "the base model's family has no rules for Megatron")
        .with_hint("`ckpt family list` shows those that have");
  if (!base.family->hf().text_type.empty())
    throw unfaithful_error({options.config_from, {}},
                           "the base model has a tower beside it: PEFT's names "
                           "are those of its modules, not of its files");
  const Dialect& dialect = *base.family->dialect("mcore");
  const Numbers numbers(base.family, dialect, "hf", base.values.values,
                        base.values.source, options.set);
  const AdapterModules modules(dialect, numbers);
  ToMegatron(source, modules, options, ranks).run();
  megatron::note_adapter_ranks(source, ranks);
  source.family = base.family->name();
  return source;
}

}  // namespace

bool needs_base_numbers(std::string_view dialect) {
  return !dialect.empty() && dialect != "hf" && dialect != "live" &&
         dialect != "loose" && dialect != "mlx" && dialect != "diffusers";
}

bool takes_adapters(std::string_view dialect) { return dialect == kGguf; }

Catalog translate_adapter(Catalog source, const TranslateOptions& options,
                          uint64_t ranks, std::optional<double> alpha) {
  const std::string from(adapter_dialect(source));
  if (options.config_from.empty() &&
      (options.to == "mcore" || takes_adapters(options.to) ||
       needs_base_numbers(from)))
    throw unfaithful_error(
        {source.path, {}},
        "an adapter does not say its base's layers and heads")
        .with_hint("--config-from BASE names the base model's directory");
  locate(source);
  load_objects(source);
  check_optimizer(source);
  if (options.to == "mcore")
    source = to_megatron(std::move(source), options, ranks);
  else if (takes_adapters(options.to))
    source = to_gguf(std::move(source), options, alpha);
  else
    source = to_peft(std::move(source), options, alpha);
  sort_tensors(source.tensors);
  source.skeleton.reset();
  source.dialect = options.to;
  source.assumptions.push_back(
      fmt::format("an adapter{}, in the names of {}",
                  source.family.empty() ? "" : " of family " + source.family,
                  options.to == "hf"      ? "PEFT"
                  : options.to == "mcore" ? "Megatron-Bridge"
                                          : owner_of(options.to)));
  return source;
}

}  // namespace ckpt::families
