// SPDX-License-Identifier: Apache-2.0
#include "formats/peft/adapter.h"

#include <array>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/peft/names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

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
// meet their weight (reshard/two_products.h).
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

// Turns names into the base's: as they are, or with more or less before them.
std::string in_base(const std::string& name, int way) {
  constexpr std::array<std::string_view, 3> kParts = {"model.", "transformer.",
                                                      "language_model."};
  if (way == 0) return name;
  const std::string_view part = kParts[static_cast<size_t>(way - 1) / 2];
  if (way % 2) return std::string(part) + name;
  return name.starts_with(part) ? name.substr(part.size()) : name;
}
constexpr int kWays = 7;

// The tensors that an adapter changes.
std::vector<std::string> changed(const Adapter& adapter, int way) {
  std::vector<std::string> names;
  for (const auto& [name, module] : adapter.modules) {
    names.push_back(in_base(name, way) + ".weight");
    if (module.bias) names.push_back(in_base(name, way) + ".bias");
  }
  for (const auto* tensors : {&adapter.wholes, &adapter.bases})
    for (const auto& item : *tensors) names.push_back(in_base(item.first, way));
  return names;
}

template <class Map>
Map renamed(const Map& map, int way) {
  Map result;
  for (const auto& [name, value] : map) result[in_base(name, way)] = value;
  return result;
}

}  // namespace

Catalog open_files(const std::string& path) {
  const std::string file = file_in(path);
  return formats::open(file.empty() ? path : file, {}, {});
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
  return adapter;
}

void meet_base(Adapter& adapter, const Catalog& base) {
  std::unordered_set<std::string_view> there;
  for (const Tensor& tensor : base.tensors) there.insert(tensor.name);
  std::vector<std::string> lacking;
  int best = 0;
  for (int way = 0; way < kWays; ++way) {
    std::vector<std::string> missing;
    for (std::string& name : changed(adapter, way))
      if (!there.contains(name)) missing.push_back(std::move(name));
    if (way != 0 && missing.size() >= lacking.size()) continue;
    lacking = std::move(missing);
    best = way;
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
            "; a head that is tied to the embedding is not in a checkpoint");
  if (best == 0) return;
  adapter.modules = renamed(adapter.modules, best);
  adapter.wholes = renamed(adapter.wholes, best);
  adapter.bases = renamed(adapter.bases, best);
}

}  // namespace ckpt::peft
