// SPDX-License-Identifier: Apache-2.0
#include "app/options/adapter.h"

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <set>
#include <unordered_map>

#include "api/check/read_all.h"
#include "api/edit/vocabulary.h"
#include "app/keep.h"
#include "app/options/read_paths.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "convert/facts.h"
#include "convert/quantized.h"
#include "formats/peft/adapter.h"
#include "lib/text/format.h"
#include "reshard/cast_kernel.h"
#include "reshard/low_rank.h"

namespace ckpt::app {
namespace {

using reshard::LowRankTerm;
using reshard::StoredMatrix;

// The classes of these models store their matrices transposed.
bool is_conv1d(const Catalog& base, const std::string& module) {
  constexpr std::array<std::string_view, 2> kFamilies = {"gpt2", "openai-gpt"};
  constexpr std::array<std::string_view, 4> kNames = {"c_attn", "c_proj",
                                                      "c_fc", "q_attn"};
  return std::ranges::find(kFamilies, base.family) != kFamilies.end() &&
         std::ranges::any_of(kNames, [&](std::string_view name) {
           return module.ends_with(name);
         });
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]",
                     fmt::join(std::span(shape.data(), shape.size()), ", "));
}

class Adding {
 public:
  Adding(Catalog& base, peft::Adapter& adapter, double weight,
         bool allow_nonfinite)
      : base_(base),
        adapter_(adapter),
        weight_(weight),
        allow_nonfinite_(allow_nonfinite) {
    for (size_t i = 0; i < base.tensors.size(); ++i)
      place_[base.tensors[i].name] = i;
  }

  void add_module(const std::string& name, const peft::Module& module) {
    Tensor& weight = tensor(name + ".weight");
    const float scale = peft::scale_of(adapter_.config, module.name, weight_);
    LowRankTerm term{.left = stored(*module.b),
                     .right = stored(*module.a),
                     .transposed = is_transposed(name, module, weight),
                     .scale = scale,
                     .magnitude = {}};
    if (term.transposed) {
      term.left = stored(*module.a);
      term.right = stored(*module.b);
    }
    term.rounded = module.embedding && !module.magnitude;
    if (module.magnitude) term.magnitude = stored(*module.magnitude);
    put(weight, std::move(term));
    if (!module.bias) return;
    put(tensor(name + ".bias"), {.left = stored(*module.bias),
                                 .right = {},
                                 .transposed = false,
                                 .scale = scale,
                                 .magnitude = {}});
  }

  // Replaces the base's tensor, in the base's dtype. It counts as made, since
  // the base's manifest knows nothing about it.
  void put_whole(const std::string& name, const Tensor& whole) {
    Tensor& old = tensor(name);
    if (has_more_rows(old, whole)) {
      grown_.insert({old.shape[0], whole.shape[0]});
      old.shape = whole.shape;
    }
    if (old.shape != whole.shape)
      throw unfaithful_error({adapter_.catalog.path, name},
                             "the adapter has {} whole, the base's is {}",
                             shape_text(whole.shape), shape_text(old.shape));
    const Extent& from = whole.pieces.at(0).extent;
    const File& file = adapter_.catalog.files.at(from.file);
    const bool plain = file.codec == Codec::kRaw && from.strides.empty() &&
                       whole.pieces.size() == 1 && !whole.pieces[0].transform;
    const bool casts =
        reshard::is_float(whole.dtype) && reshard::is_float(old.dtype);
    if (!plain || (whole.dtype != old.dtype && !casts))
      throw unfaithful_error({file.path, whole.name},
                             "{}, and not stored in one piece: it can't take "
                             "the place of the base's {}",
                             ckpt::name(whole.dtype), ckpt::name(old.dtype))
          .with_hint("`ckpt convert ADAPTER DST --to safetensors` first");
    const auto& made = *keep(std::make_unique<reshard::Borrowed>(
        file, from.offset, whole.dtype, old.dtype));
    put_file(old, made, file.path);
  }

  // peft's resize_token_embeddings(): tokens were added in training, and each
  // table of them is in the adapter whole.
  void follow_tokens() {
    if (grown_.empty()) return;
    const auto [before, rows] = *grown_.begin();
    for (const Tensor& tensor : base_.tensors)
      if (library::has_row_for_each_token(tensor.name) &&
          !tensor.shape.empty() && tensor.shape[0] == before)
        throw unfaithful_error(
            {adapter_.catalog.path, tensor.name},
            "the adapter has tokens of {} rows, and this table of the base has "
            "{}: it is not in the adapter",
            rows, before)
            .with_hint(
                "save the adapter with both the embedding and the head "
                "(save_embedding_layers=True)");
    if (grown_.size() > 1)
      throw unfaithful_error({adapter_.catalog.path, {}},
                             "the adapter's embedding and head have {} and {} "
                             "rows",
                             rows, std::prev(grown_.end())->second)
          .with_hint("save the adapter again: they belong to one vocabulary");
    library::follow_rows_of(base_, before, rows);
    spdlog::warn(
        "{}: the vocabulary has {} rows, the base's has {}: vocab_size "
        "follows; the tokenizer that goes with it is the adapter's",
        text::printable(adapter_.catalog.path), rows, before);
  }

  // So that a change during the run is noticed.
  uint32_t first_file() {
    if (!first_) {
      first_ = static_cast<uint32_t>(base_.files.size());
      base_.files.insert(base_.files.end(), adapter_.catalog.files.begin(),
                         adapter_.catalog.files.end());
    }
    return *first_;
  }

 private:
  static bool has_more_rows(const Tensor& old, const Tensor& whole) {
    return library::has_row_for_each_token(old.name) && !old.shape.empty() &&
           old.shape.size() == whole.shape.size() &&
           whole.shape[0] > old.shape[0] &&
           std::equal(old.shape.begin() + 1, old.shape.end(),
                      whole.shape.begin() + 1);
  }

  void put_file(Tensor& tensor, const reshard::Made& made,
                const std::string& path) {
    const auto file = static_cast<uint32_t>(base_.files.size());
    base_.files.push_back(reshard::made_file(made, path, byte_size(tensor)));
    tensor.grid = {};
    tensor.pieces = {{.box = Box::whole(tensor.shape),
                      .flat = {},
                      .extent = {.offset = 0, .strides = {}, .file = file}}};
    tensor.tie = 0;
  }

  Tensor& tensor(const std::string& name) {
    return base_.tensors.at(place_.at(name));
  }

  StoredMatrix stored(const Tensor& tensor) const {
    return {tensor, adapter_.catalog.files};
  }

  // Every matrix except a square one shows it.
  bool is_transposed(const std::string& name, const peft::Module& module,
                     const Tensor& weight) const {
    if (module.embedding) return true;
    const uint64_t in = module.a->shape[1], out = module.b->shape[0];
    if (in != out) return weight.shape == Shape{in, out};
    if (base_.family.empty()) return adapter_.config.fan_in_fan_out;
    return is_conv1d(base_, name);
  }

  void put(Tensor& tensor, LowRankTerm term) {
    first_file();
    term.allow_nonfinite = allow_nonfinite_;
    const auto& made = *keep(std::make_unique<reshard::LowRank>(
        StoredMatrix(tensor, base_.files), std::move(term), tensor.name));
    put_file(tensor, made,
             base_.files.at(tensor.pieces.at(0).extent.file).path);
  }

  Catalog& base_;
  peft::Adapter& adapter_;
  const double weight_;
  const bool allow_nonfinite_;
  std::unordered_map<std::string, size_t> place_;
  std::optional<uint32_t> first_;
  std::set<std::pair<uint64_t, uint64_t>> grown_;  // rows before and after
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

void check_known(const peft::Adapter& adapter, bool strict) {
  const std::vector<std::string>& keys = adapter.config.unknown;
  if (keys.empty()) return;
  const std::string text = text::printable(
      fmt::format("has keys that are not known: {}", fmt::join(keys, ", ")));
  if (strict)
    throw unfaithful_error({adapter.config.path, {}}, "--strict-config: {}",
                           text)
        .with_hint("take them out if they change nothing");
  spdlog::warn("{}: {}; they may change what the adapter adds",
               text::printable(adapter.config.path), text);
}

bool is_input_embedding(std::string_view module) {
  constexpr std::array<std::string_view, 5> kNames = {
      "embed_tokens", "embed_in", "wte", "word_embeddings", "shared"};
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return std::ranges::find(kNames, last) != kNames.end();
}

bool has_head(const Catalog& base) {
  return std::ranges::any_of(base.tensors, [](const Tensor& tensor) {
    return tensor.name.ends_with("lm_head.weight") ||
           tensor.name.ends_with("embed_out.weight");
  });
}

bool is_tied(const Catalog& base) {
  if (has_head(base)) return false;
  const families::Facts facts = families::config_facts_of(base);
  const auto tied = facts.find("tied");
  return tied != facts.end() && tied->second.value == families::Json(true);
}

// peft changes the embedding of a tied model and leaves its head as it was
// (huggingface/peft#2777), until merge_and_unload() adds factors to both. A
// copy of its own replaces the embedding alone, also when it is merged; here it
// would be the head, too, because there is one tensor for both.
void check_tied(const peft::Adapter& adapter, const Catalog& base) {
  const auto embeds = [](const auto& item) {
    const std::string& name = item.first;
    return is_input_embedding(
        name.ends_with(".weight")
            ? std::string_view(name).substr(0, name.size() - 7)
            : std::string_view(name));
  };
  const auto whole = std::ranges::find_if(adapter.wholes, embeds);
  const auto module = std::ranges::find_if(adapter.modules, embeds);
  const bool has_whole = whole != adapter.wholes.end() && !adapter.config.ties;
  if ((!has_whole && module == adapter.modules.end()) || !is_tied(base)) return;
  if (has_whole)
    throw unfaithful_error(
        {adapter.config.path, whole->first},
        "the base's head is tied to this embedding: peft replaces the "
        "embedding and keeps the old one as the head, and the base has one "
        "tensor for both")
        .with_hint(
            "add it to a base with an lm_head.weight of its own and "
            "tie_word_embeddings false; or train with ensure_weight_tying");
  spdlog::warn(
      "{}: {}: the head is tied to this embedding and changes with it, as in "
      "peft's merge_and_unload(); in training, the adapter changed the "
      "embedding alone",
      text::printable(adapter.config.path), text::printable(module->first));
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

// peft warns of keys that a configuration promises and a file lacks, and goes
// on with new factors, which add nothing, or with the base's own module.
void warn_of_absent(const peft::Adapter& adapter, const Catalog& base) {
  size_t targets = 0;
  if (const auto bare = bare_modules(adapter, base, targets); !bare.empty())
    spdlog::warn(
        "{}: {} of {} modules that target_modules finds have no factors here: "
        "{}{}; they stay the base's",
        text::printable(adapter.catalog.path), bare.size(), targets,
        text::printable(bare.front()),
        bare.size() == 1 ? "" : fmt::format(" and {} more", bare.size() - 1));
  for (const std::string& name : adapter.config.saved) {
    const bool there =
        std::ranges::any_of(adapter.wholes, [&](const auto& one) {
          return ("." + one.first).find("." + name + ".") != std::string::npos;
        });
    if (!there)
      spdlog::warn(
          "{}: modules_to_save has {}, and no tensor of it is here; "
          "it stays the base's",
          text::printable(adapter.catalog.path), text::printable(name));
  }
}

// Reads the adapter, which is small beside its base.
void check_values(const peft::Adapter& adapter, bool allow_nonfinite) {
  Catalog copy = adapter.catalog;
  const library::Reading reading = library::read_all(copy, {}, {.stats = true});
  std::vector<std::string> idle;
  for (size_t i = 0; i < copy.tensors.size(); ++i) {
    const reshard::Stats& stats = reading.stats.at(i);
    const std::string& name = copy.tensors[i].name;
    if (!stats.finite()) {
      const Error error = unfaithful_error(
          {adapter.catalog.path, name}, "{} of {} values are not finite",
          stats.nans + stats.infs, stats.count);
      if (!allow_nonfinite)
        throw error.with_hint(
            "take an older step of the adapter; --allow-nonfinite adds it as "
            "it is");
      spdlog::warn("{}: {}", text::printable(name), error.problem());
    }
    const bool last = name.find(".lora_B") != name.npos ||
                      name.find(".lora_embedding_B") != name.npos;
    if (last && stats.count != 0 && stats.zeros == stats.count)
      idle.push_back(name);
  }
  if (!idle.empty())
    spdlog::warn(
        "{}: {} of {} are zero in all their elements and add nothing: "
        "{}{}",
        text::printable(adapter.catalog.path),
        text::counted(idle.size(), "lora_B"), adapter.modules.size(),
        text::printable(idle.front()),
        idle.size() == 1 ? "" : fmt::format(" and {} more", idle.size() - 1));
}

void add_adapter(Catalog& base, const std::string& path, double weight,
                 bool strict, bool allow_nonfinite) {
  peft::Adapter& adapter = keep(peft::open_adapter(path));
  refuse_holes(adapter.catalog);
  check_known(adapter, strict);
  if (!std::isfinite(weight))
    throw usage_error({path, {}}, "--adapter-weight {}", weight);
  peft::meet_base(adapter, base);
  check_tied(adapter, base);
  warn_of_absent(adapter, base);
  check_values(adapter, allow_nonfinite);
  Adding adding(base, adapter, weight, allow_nonfinite);
  adding.first_file();
  for (const auto& [name, own] : adapter.bases) adding.put_whole(name, *own);
  for (const auto& [name, module] : adapter.modules)
    adding.add_module(name, module);
  for (const auto& [name, whole] : adapter.wholes)
    adding.put_whole(name, *whole);
  adding.follow_tokens();
  base.assumptions.push_back(
      fmt::format("{}: added to {}: {}{}", path,
                  text::counted(adapter.modules.size(), "weight"),
                  peft::describe(adapter.config),
                  weight == 1 ? "" : fmt::format("; times {}", weight)));
  spdlog::info("{}", text::printable(base.assumptions.back()));
}

}  // namespace

void add_adapter_options(CLI::App& app, AdapterOptions& options) {
  const char* group = "Adapters";
  names_either(
      app.add_option("--adapter", options.paths,
                     "A LoRA adapter (PEFT) to add to the weights; several in "
                     "order"))
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--adapter-weight", options.weights,
                 "How much of it, 1 if not given; one for each --adapter")
      ->type_name("W")
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--allow-nonfinite", options.allow_nonfinite,
               "Add an adapter with NaN or infinite values, or sums of them")
      ->group(group);
}

void add_adapters(Catalog& base, const AdapterOptions& options, bool strict) {
  if (!options.weights.empty() &&
      options.weights.size() != options.paths.size())
    throw usage_error({}, "--adapter-weight is given {}, --adapter {}",
                      text::counted(options.weights.size(), "time"),
                      text::counted(options.paths.size(), "time"));
  if (const auto codes = families::quantized_weights(base); !codes.empty())
    throw unfaithful_error({base.path, {}},
                           "{}: codes of quantized weights, to which nothing "
                           "can be added",
                           families::describe(codes))
        .with_hint(families::dequantize_hint(base));
  locate(base);
  refuse_holes(base);
  for (size_t i = 0; i < options.paths.size(); ++i)
    add_adapter(base, options.paths[i],
                options.weights.empty() ? 1 : options.weights[i], strict,
                options.allow_nonfinite);
}

}  // namespace ckpt::app
