// SPDX-License-Identifier: Apache-2.0
#include "formats/peft/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "formats/format.h"
#include "formats/peft/names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "models/hf_names.h"
#include "models/wrapper.h"

namespace ckpt::peft {
namespace {

// Removes `part` and what follows from `name`, if `name` has it. `rest` gets
// what follows: "", "weight", "default.weight".
bool cut(std::string& name, std::string_view part, std::string& rest) {
  const size_t at = name.rfind(part);
  if (at == name.npos || at == 0) return false;
  const size_t end = at + part.size();
  if (end != name.size() && name[end] != '.') return false;
  rest = end == name.size() ? "" : name.substr(end + 1);
  name.resize(at);
  return true;
}

void put(const Adapter& adapter, const Tensor*& place, const Tensor& tensor) {
  if (place)
    throw unfaithful_error({adapter.catalog.path, tensor.name},
                           "{} is for the same module: several adapters are "
                           "in one file",
                           place->name);
  place = &tensor;
}

// A whole matrix stands where its left factor would.
struct FactorRow {
  std::string_view name;
  const Tensor* Module::*place;
};
constexpr FactorRow kFactors[] = {
    {".hada_w1_a", &Module::b},  {".hada_w1_b", &Module::a},
    {".hada_w2_a", &Module::b2}, {".hada_w2_b", &Module::a2},
    {".lokr_w1", &Module::b},    {".lokr_w1_a", &Module::b},
    {".lokr_w1_b", &Module::a},  {".lokr_w2", &Module::b2},
    {".lokr_w2_a", &Module::b2}, {".lokr_w2_b", &Module::a2},
};

void sort_tensor(Adapter& adapter, const Tensor& tensor) {
  std::string name = tensor.name;
  if (!name.starts_with(kPrefix))
    throw unfaithful_error({adapter.catalog.path, tensor.name},
                           "a tensor of an adapter begins with {}", kPrefix);
  name.erase(0, kPrefix.size());
  std::string rest;
  Module found;
  const Tensor* Module::*place = nullptr;
  if (cut(name, ".lora_embedding_A", rest)) {
    place = &Module::a, found.embedding = true;
  } else if (cut(name, ".lora_embedding_B", rest)) {
    place = &Module::b, found.embedding = true;
  } else if (cut(name, ".lora_magnitude_vector", rest)) {
    place = &Module::magnitude;
  } else if (cut(name, ".lora_A", rest)) {
    place = &Module::a;
  } else if (cut(name, ".lora_B", rest)) {
    place = rest.ends_with("bias") ? &Module::bias : &Module::b;
  }
  for (const FactorRow& row : kFactors)
    if (!place && cut(name, row.name, rest))
      place = row.place, found.kronecker = row.name.starts_with(".lokr");
  if (place) {
    Module& module = adapter.modules[name];
    module.name = name;
    module.embedding |= found.embedding;
    module.kronecker |= found.kronecker;
    return put(adapter, module.*place, tensor);
  }
  constexpr std::string_view kBase = ".base_layer";
  if (const size_t at = name.rfind(kBase);
      at != name.npos && name.find('.', at + 1) == at + kBase.size())
    return put(adapter, adapter.bases[name.erase(at, kBase.size())], tensor);
  if (name.find("lora_") != name.npos || name.find("hada_") != name.npos ||
      name.find("lokr_") != name.npos ||
      name.find(".token_adapter.") != name.npos)
    throw unfaithful_error({adapter.catalog.path, tensor.name},
                           "it is not known what this part of an adapter does");
  put(adapter, adapter.wholes[without_saved(name)], tensor);
}

// What ZeRO 3 leaves of a parameter on a rank that doesn't gather it.
void refuse_empty(const std::string& path, const Tensor& tensor) {
  if (element_count(tensor.shape).value_or(1) != 0) return;
  throw input_error({path, tensor.name}, "has no elements: its shape is {}",
                    to_string(tensor.shape))
      .with_hint(
          "ZeRO 3 leaves such tensors where nothing gathered the parameters; "
          "the weights are in global_stepN of the same step: ckpt convert STEP "
          "DST --to safetensors");
}

// LoHa's and LoKr's: what the products need of each other is checked where they
// meet their weight (reshard/sources/two_products.h).
void check_products(const Adapter& adapter, const std::string& name,
                    const Module& module) {
  const bool whole = module.kronecker;
  if (!module.b || !module.b2 || (!whole && (!module.a || !module.a2)))
    throw input_error({adapter.catalog.path, name}, "a factor of {} is missing",
                      whole ? "LoKr's" : "LoHa's");
  if (module.bias || module.magnitude || module.embedding)
    throw unfaithful_error({adapter.catalog.path, name},
                           "it has LoRA's factors, too");
  const uint64_t rank = rank_of(adapter.config, name);
  for (const auto& [a, b] :
       {std::pair{module.a, module.b}, std::pair{module.a2, module.b2}}) {
    if (b->shape.size() < 2 || (a && a->shape.size() < 2))
      throw input_error({adapter.catalog.path, b->name},
                        "a factor of {} dimensions", b->shape.size());
    if (a && (a->shape[0] != rank || b->shape[1] != rank))
      throw input_error({adapter.catalog.path, a->name},
                        "its factors are of ranks {} and {}, {} says {}",
                        a->shape[0], b->shape[1], adapter.config.path, rank);
  }
}

void check_module(const Adapter& adapter, const std::string& name,
                  const Module& module) {
  const Config& config = adapter.config;
  if (module.kronecker || module.a2 || module.b2)
    return check_products(adapter, name, module);
  if (!module.a || !module.b)
    throw input_error({adapter.catalog.path, name}, "lora_{} is missing",
                      module.a ? 'B' : 'A');
  for (const Tensor* tensor : {module.a, module.b})
    if (tensor->shape.size() != 2 &&
        (tensor->shape.size() != 4 || module.a->shape.size() != 4))
      throw unfaithful_error({adapter.catalog.path, tensor->name},
                             "a factor of {} dimensions: only those of "
                             "matrices and of two-dimensional convolutions are "
                             "added",
                             tensor->shape.size());
  const uint64_t rank = rank_of(config, name);
  if (module.a->shape[0] != rank || module.b->shape[1] != rank)
    throw input_error({adapter.catalog.path, name},
                      "its factors are of ranks {} and {}, {} says {}",
                      module.a->shape[0], module.b->shape[1], config.path,
                      rank);
  if (config.dora != (module.magnitude != nullptr))
    throw input_error({adapter.catalog.path, name},
                      "{} says use_dora: {}, and lora_magnitude_vector is {}",
                      config.path, config.dora,
                      module.magnitude ? "there" : "missing");
}

// Reads the names of an adapter as its own library will.
class Parts {
 public:
  Parts(const Catalog& catalog, const Config& config)
      : catalog_(catalog), config_(config) {}

  void take(const Tensor& tensor) {
    const auto part = part_of(tensor.name);
    if (!part) {
      std::string name(in_base_model(tensor.name));
      wholes_.push_back("." + without_saved(std::move(name)));
      return;
    }
    if (part->role != Role::kA && part->role != Role::kB) return;
    const std::string_view type = ckpt::name(tensor.dtype);
    if (!type.starts_with('f') && !type.starts_with("bf"))
      problems_.push_back(damage("dtype", {catalog_.path, tensor.name},
                                 "is {}: a factor of an adapter is a matrix of "
                                 "floats",
                                 type));
    // Of Megatron's, each part of a fused matrix may have factors of its own.
    if (part->dialect->modules == Modules::kMegatron) return;
    Pair& pair = pairs_[{part->component, part->module}];
    (part->role == Role::kA ? pair.a : pair.b) = &tensor;
    pair.turned = part->dialect->turned;
    pair.looked_up =
        part->dialect->modules == Modules::kGguf && part->embedding;
    // litgpt's A holds those of q, k and v, B theirs of one rank each.
    pair.fused = part->dialect->modules == Modules::kLitgpt;
  }

  std::vector<Problem> judged() {
    for (const auto& [place, pair] : pairs_) judge(place.second, pair);
    if (own_file()) promises();
    return std::move(problems_);
  }

 private:
  struct Pair {
    const Tensor* a = nullptr;
    const Tensor* b = nullptr;
    bool turned = false, fused = false, looked_up = false;
  };

  bool own_file() const {
    return config_.dialect == "peft" && config_.path != catalog_.path;
  }

  void judge(const std::string& module, const Pair& pair) {
    if (!pair.a || !pair.b) {
      const Tensor& there = pair.a ? *pair.a : *pair.b;
      problems_.push_back(
          damage("missing_tensor", {catalog_.path, there.name},
                 "stands alone: of {} the other factor is not here", module));
      return;
    }
    if (pair.fused || pair.a->shape.size() < 2 || pair.b->shape.size() < 2)
      return;
    const uint64_t of_a = pair.a->shape[pair.turned || pair.looked_up ? 1 : 0];
    const uint64_t of_b = pair.b->shape[pair.turned ? 0 : 1];
    const bool said = own_file() && config_.says_rank;
    const uint64_t rank = said ? rank_of(config_, module) : of_a;
    if (of_a == rank && of_b == rank) return;
    problems_.push_back(
        damage("shape", {catalog_.path, pair.a->name},
               "the factors of {} are of ranks {} and {}{}", module, of_a, of_b,
               said ? fmt::format(", {} says {}", config_.path, rank) : ""));
  }

  bool has_whole(const std::string& name) const {
    return std::ranges::any_of(wholes_, [&](const std::string& one) {
      return one.find("." + name + ".") != std::string::npos;
    });
  }

  // peft names both heads that a classifier may have.
  bool is_head(const std::string& name) const {
    constexpr std::string_view kHeads[] = {"classifier", "score"};
    return std::ranges::count(kHeads, name) != 0 &&
           std::ranges::any_of(kHeads, [&](std::string_view one) {
             return has_whole(std::string(one));
           });
  }

  // What peft starts anew, or takes from the base, and warns of.
  void promises() {
    for (const std::string& name : config_.saved)
      if (!has_whole(name) && !is_head(name))
        problems_.push_back(
            warning("adapter_bare", {catalog_.path, {}},
                    "modules_to_save has {}, and no tensor of it is here",
                    text::printable(name)));
    // One target is an expression, or a word for all modules.
    if (config_.targets.size() < 2) return;
    for (const std::string& target : config_.targets) {
      Config one = config_;
      one.targets = {target};
      if (std::ranges::none_of(pairs_, [&](const auto& item) {
            return is_target(one, item.first.second);
          }))
        problems_.push_back(
            warning("adapter_bare", {catalog_.path, {}},
                    "target_modules has {}, and no factor is of such a module",
                    text::printable(target)));
    }
  }

  const Catalog& catalog_;
  const Config& config_;
  std::map<std::pair<std::string, std::string>, Pair> pairs_;  // component too
  std::vector<std::string> wholes_;
  std::vector<Problem> problems_;
};

// Turns a tensor's name into the base's.
using Way = std::function<std::string(const std::string&)>;

// As they are; with more or less before them; as the Hub's files name what
// transformers' modules call otherwise.
std::vector<Way> ways_into(const Catalog& base) {
  std::vector<Way> ways{[](const std::string& name) { return name; }};
  for (const std::string part : {"model.", "transformer.", "language_model."}) {
    ways.push_back([part](const std::string& name) { return part + name; });
    ways.push_back([part](const std::string& name) {
      return name.starts_with(part) ? name.substr(part.size()) : name;
    });
  }
  ways.push_back(
      [config = formats::config_json_of(base)](const std::string& name) {
        return families::hub_name(name, config);
      });
  return ways;
}

// A module's name by that of its weight.
std::string module_in(const std::string& name, const Way& way) {
  constexpr std::string_view kWeight = ".weight";
  const std::string weight = way(name + std::string(kWeight));
  return weight.substr(0, weight.size() - kWeight.size());
}

// The tensors that an adapter changes.
std::vector<std::string> changed(const Adapter& adapter, const Way& way) {
  std::vector<std::string> names;
  for (const auto& [name, module] : adapter.modules) {
    names.push_back(way(name + ".weight"));
    if (module.bias) names.push_back(way(name + ".bias"));
  }
  for (const auto* tensors : {&adapter.wholes, &adapter.bases})
    for (const auto& item : *tensors) names.push_back(way(item.first));
  return names;
}

template <class Map, class Name>
Map renamed(const Map& map, const Name& name_of) {
  Map result;
  for (const auto& [name, value] : map) result[name_of(name)] = value;
  return result;
}

}  // namespace

Catalog open_files(const std::string& path) {
  const std::string file = file_in(path);
  return formats::open(file.empty() ? path : file, {}, {});
}

std::vector<Problem> check_parts(const Catalog& catalog, const Config& config) {
  Parts parts(catalog, config);
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind != Kind::optim) parts.take(tensor);
  return parts.judged();
}

std::optional<Problem> other_names(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors) {
    std::string_view name = tensor.name;
    const bool own = name.starts_with(kPrefix);
    if (own) name.remove_prefix(kPrefix.size());
    const auto part = part_of(tensor.name);
    const bool live = part && part->live;
    if (!own || live || name.starts_with(kPrefix) ||
        families::without_wrappers(std::string(name)) != name)
      return damage("wrapped_names", {catalog.path, tensor.name},
                    "PEFT looks for other names: base_model.model. and the "
                    "base's own, without the adapter's name");
  }
  return std::nullopt;
}

Adapter sorted(Catalog catalog, const Config& config) {
  Adapter adapter{.config = config, .catalog = {}, .modules = {}, .wholes = {}};
  adapter.catalog = std::move(catalog);
  locate(adapter.catalog);
  for (const Tensor& tensor : adapter.catalog.tensors) {
    refuse_empty(adapter.catalog.path, tensor);
    sort_tensor(adapter, tensor);
  }
  for (const auto& [name, module] : adapter.modules)
    check_module(adapter, name, module);
  // bias="all" saves each parameter whose name has "bias": of a module that is
  // trained whole also the one beside it, and once more under a name with which
  // peft loads nothing.
  const auto is_repeat = [&](const std::string& name) {
    constexpr std::string_view kSaved = ".modules_to_save.";
    if (name.find(".original_module.") != name.npos) return true;
    const size_t at = name.find(kSaved);
    return at != name.npos &&
           adapter.wholes.contains(name.substr(0, at + 1) +
                                   name.substr(at + kSaved.size()));
  };
  std::vector<std::string> repeats;
  for (const auto& [name, whole] : adapter.wholes)
    if (is_repeat(name)) repeats.push_back(name);
  for (const std::string& name : repeats) adapter.wholes.erase(name);
  return adapter;
}

void meet_base(Adapter& adapter, const Catalog& base) {
  std::unordered_set<std::string_view> there;
  for (const Tensor& tensor : base.tensors) there.insert(tensor.name);
  std::vector<std::string> lacking;
  const std::vector<Way> ways = ways_into(base);
  const Way* best = nullptr;
  for (const Way& way : ways) {
    std::vector<std::string> missing;
    for (std::string& name : changed(adapter, way))
      if (!there.contains(name)) missing.push_back(std::move(name));
    if (best != nullptr && missing.size() >= lacking.size()) continue;
    lacking = std::move(missing);
    best = &way;
  }
  if (!lacking.empty())
    throw unfaithful_error(
        {adapter.catalog.path, lacking.front()},
        "the base doesn't have this tensor{}; the adapter changes it",
        lacking.size() == 1 ? std::string()
                            : fmt::format(", nor {} more", lacking.size() - 1))
        .with_hint(
            "the adapter was trained on " +
            (adapter.config.base.empty() ? "another model"
                                         : adapter.config.base) +
            "; a head that is tied to the embedding is not in a checkpoint: "
            "--untie gives the base one of its own");
  adapter.modules = renamed(adapter.modules, [&](const std::string& name) {
    return module_in(name, *best);
  });
  adapter.wholes = renamed(adapter.wholes, *best);
  adapter.bases = renamed(adapter.bases, *best);
}

}  // namespace ckpt::peft
