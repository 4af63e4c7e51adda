// SPDX-License-Identifier: Apache-2.0
#include "convert/translate.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/check_source.h"
#include "convert/config/dialects.h"
#include "convert/config/gguf.h"
#include "convert/config/model_config.h"
#include "convert/config/trainer.h"
#include "convert/config/values.h"
#include "convert/quantized/quantized.h"
#include "convert/rules/backbone.h"
#include "convert/rules/optimizer.h"
#include "convert/rules/translation.h"
#include "convert/sizes.h"
#include "convert/warnings.h"
#include "formats/megatron/canonical/names.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "models/defaults.h"
#include "models/order.h"

namespace ckpt::families {
namespace {

const Dialect& need_dialect(const Family& family, std::string_view name) {
  if (const Dialect* dialect = family.dialect(name)) return *dialect;
  std::string known = "hf";
  for (const Dialect& dialect : family.dialects())
    if (family.dialect(dialect.name)) known += ", " + dialect.name;
  const bool sees = !family.hf().outer.empty();
  throw unfaithful_error({}, "family {} has no rules for {}{}", family.name(),
                         name,
                         sees ? ", which has no place for the tower beside "
                                "the language model"
                              : "")
      .with_hint("it has " + known +
                 "; --family-file FILE brings a family of your own");
}

std::shared_ptr<const Family> need_family(const Catalog& source,
                                          const TranslateOptions& options) {
  if (auto family = find_family(source, options)) {
    check_type(source, options, *family);
    check_named(source, options, *family);
    return family;
  }
  // It says what is wrong with the numbers that would tell.
  const std::string_view dialect = dialect_of(source);
  std::string instead;
  if (const TrainerConfig* own = TrainerConfig::of(dialect);
      own != nullptr || dialect == kGguf) {
    const bool said = !values_of(source, dialect).source.empty();
    if (own != nullptr && !said && !own->file().empty())
      instead = fmt::format("{} has its numbers in {}: put that beside it, or ",
                            own->owner(), own->file());
  }
  if (const std::string why = why_not_megatron(source.family);
      options.to == "mcore" && !why.empty())
    throw unfaithful_error({source.path, {}},
                           "a '{}' does not go to Megatron-Core: {}",
                           source.family, why)
        .with_hint(
            "keep its names: --dialect keep, or --to safetensors, torch, dcp");
  throw unfaithful_error({source.path, {}}, "the model's family is not known{}",
                         source.family.empty()
                             ? std::string()
                             : ": '" + source.family + "' is not supported yet")
      .with_hint(
          instead +
          "name it with --family (`ckpt family list` has all, --family-file "
          "FILE brings one of your own), or keep the names: --dialect keep");
}

void drop_state(Catalog& source, const Globs& drop) {
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    return tensor.kind != Kind::model && drop.match(tensor.name);
  });
}

// Optimizer state follows its parameters between transformers and Megatron,
// whose optimizers are known.
void check_optimizer(const Catalog& source, std::string_view from,
                     std::string_view to) {
  if ((from == "hf" && to == "mcore") || (from == "mcore" && to == "hf"))
    return;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({source.path, tensor.name},
                             "optimizer state can't be carried from {} to {}",
                             owner_of(from), owner_of(to))
          .with_hint(
              "--model-only converts the model alone; `ckpt reshard` "
              "keeps the optimizer, in the dialect that it has");
}

// Translates the state by the rules that its parameters had.
void translate_optimizer(Catalog& source, Optimizer optimizer,
                         const TranslateOptions& options, const Family& family,
                         const Numbers& numbers, const Parents& parents) {
  for (runs::AdamGroup& group : optimizer.groups)
    for (std::string& param : group.params) param = family.normal_name(param);
  for (auto& [state, tensors] : optimizer.states) {
    Translation translation(source, options,
                            state == kMainState ? Of::kMains : Of::kMoments,
                            ", " + state);
    NamedTensors states({});
    if (options.to == "hf")
      states = translation.to_hf(NamedTensors(std::move(tensors)), numbers);
    else
      states = translation.from_hf(
          translation.normal(std::move(tensors), family), numbers);
    tensors = std::move(states.tensors());
  }
  if (options.to == "hf")
    put_in_transformers(source, std::move(optimizer), parents);
  else
    put_in_megatron(source, std::move(optimizer), parents);
}

// Leaves out what a trainer keeps besides model and optimizer: it is not
// Megatron's.
void leave_run(Catalog& source) {
  if (!source.run || source.objects.empty()) return;
  const size_t count = source.objects.size();
  source.objects.clear();
  source.problems.push_back(
      remark("object_left_out", {source.path, {}},
             "{} of {} (scheduler, random numbers, its own state) have "
             "no place in Megatron's checkpoints",
             text::counted(count, "value"), source.run->trainer));
}

// Dialect rules arrange numbers, so they don't apply to blocks of scales.
void refuse_quantized(const Catalog& source, const std::string& to) {
  const std::vector<QuantizedWeight> weights = quantized_weights(source);
  if (weights.empty()) return;
  throw unfaithful_error({source.path, weights.front().name},
                         "{} weights are quantized, and {} has no place for "
                         "their scales: {}",
                         weights.size(), to, describe(weights))
      .with_hint(dequantize_hint(source));
}

void add_sizes(const NamedTensors& model, const Facts& facts,
               const TranslateOptions& options, const std::string& path) {
  for (const Error& error :
       find_sizes(model, facts, Globs(options.drop), true, path))
    options.findings->push_back(
        {"misshapen", error.where().tensor, error.problem(), error.hint()});
}

// Args that only shapes say, while there are shapes, and --set: the heads.
void state_args(Catalog& source, const Overrides& set) {
  Values args = values_of(source, "mcore");
  const auto there = std::ranges::find(source.objects, "args", &Object::name);
  if (args.source.empty() || there != source.objects.end()) return;
  if (const auto heads = set.find("nh"); heads != set.end())
    if (const auto count = text::number(heads->second))
      args.values["num_attention_heads"] = *count;
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id node = pickle::from_json(*document, args.values);
  source.objects.push_back(
      {.name = "args", .document = std::move(document), .node = node});
}

// The metadata says the same, or it was refused.
void take_out(std::string_view name, std::vector<Tensor>& tensors) {
  std::erase_if(tensors,
                [&](const Tensor& tensor) { return tensor.name == name; });
}

void name_backbone(Catalog& source, const TranslateOptions& options,
                   const Family& family, std::vector<Tensor>& tensors) {
  const Values config = options.config_from.empty()
                            ? values_of(source, "hf")
                            : values_of_file(options.config_from, "hf");
  const Backbone backbone = find_backbone(config.values, family, tensors);
  if (!backbone) return;
  for (Tensor& tensor : tensors) tensor.name = backbone.to_model(tensor.name);
  source.assumptions.push_back(fmt::format(
      "names begin with '{}' instead of '{}': those of a backbone by itself, "
      "or of another class ({})",
      backbone.model, backbone.here, config.source));
}

}  // namespace

Catalog translate(Catalog source, const TranslateOptions& options) {
  locate_archives(source);
  load_objects(source);
  const std::string from(dialect_of(source));
  if (from.empty())
    throw unfaithful_error({source.path, {}},
                           "the tensors' names are of no known dialect")
        .with_hint(fmt::format(
            "`ckpt inspect --tree` shows them; --rename brings them to "
            "one, --family-file FILE brings rules for them{}",
            options.to == "hf" ? "; --to safetensors keeps them" : ""));
  const auto family = need_family(source, options);
  if (!options.lenient) {
    drop_state(source, Globs(options.drop));
    check_optimizer(source, from, options.to);
  }
  const bool trained = !options.lenient && has_optimizer(source);
  if (trained && from == "mcore") gather_megatron(source);
  if (from == "mcore") {
    state_args(source, options.set);
    megatron::to_canonical(source);
  }
  std::optional<Optimizer> optimizer;
  if (trained) optimizer = take_optimizer(source, from);
  if (options.to == "mcore") leave_run(source);
  if (!options.lenient) refuse_quantized(source, options.to);
  // It looks at the names.
  Configuration configuration(source, family, from, options);
  std::vector<Tensor> tensors = std::move(source.tensors);
  if (from == kGguf) take_out(kGgufRope, tensors);
  const DType dtype = model_dtype(tensors);
  Translation translation(source, options);
  NamedTensors model({});
  if (from == "hf") {
    name_backbone(source, options, *family, tensors);
    model = translation.normal(std::move(tensors), *family);
  } else {
    const Numbers& own = configuration.numbers(need_dialect(*family, from));
    model = translation.to_hf(NamedTensors(std::move(tensors)), own);
    warn_of_padding(source, own);
  }
  if (options.findings) {
    add_sizes(model, configuration.facts(), options, source.path);
  } else if (!options.lenient) {
    check_sizes(model, configuration.facts(), Globs(options.drop),
                options.to == "mcore", source.path);
  }
  if (options.to != "hf")
    model = translation.from_hf(
        std::move(model),
        configuration.hf_numbers(need_dialect(*family, options.to)));
  source.tensors = std::move(model.tensors());
  if (optimizer)
    translate_optimizer(
        source, std::move(*optimizer), options, *family,
        options.to == "hf"
            ? configuration.numbers(need_dialect(*family, from))
            : configuration.hf_numbers(need_dialect(*family, options.to)),
        translation.parents());
  if (from == kGguf && !options.lenient) check_gguf_decays(source);
  if (from == kGguf && !options.lenient && !options.dtype)
    narrow_gguf_tensors(source);
  if (options.to == kGguf) widen_gguf_numbers(source);
  warn_of_rounding(source, dtype);
  sort_tensors(source.tensors);
  configuration.finish(source);
  source.skeleton.reset();
  source.family = family->name();
  source.dialect = options.to;
  source.assumptions.push_back(
      fmt::format("family {}: {} to {}", family->name(), from, options.to));
  return source;
}

}  // namespace ckpt::families
