// SPDX-License-Identifier: Apache-2.0
#include "api/check/meet.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "api/buffers.h"
#include "api/edit/parts.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/config/dialects.h"
#include "convert/config/values.h"
#include "convert/rules/optimizer.h"
#include "convert/rules/trained_experts.h"
#include "convert/translate.h"
#include "formats/megatron/canonical/names.h"
#include "formats/runs/models/own_names.h"
#include "formats/traits.h"
#include "models/buffers.h"
#include "models/hf_names.h"
#include "models/view.h"
#include "models/wrapper.h"

namespace ckpt::library {
namespace {

using Names = std::set<std::string_view>;

// Containers without kinds hold optimizer state as if it were a model's
// tensors.
Names names_of(const Catalog& catalog) {
  Names names;
  for (const Tensor& tensor : catalog.tensors) names.insert(tensor.name);
  return names;
}

void warn(const Catalog& a, const Catalog& b, const std::string& why,
          const Engine& engine) {
  engine.warn(
      fmt::format("{} and {} are compared under the names that they have: {}",
                  a.path, b.path, why));
}

// A checkpoint without a config.json borrows the other side's.
void lend_config(const Catalog& from, Catalog& to) {
  if (!families::values_of(to, "hf").source.empty()) return;
  if (auto config = families::config_sidecar(from))
    to.sidecars.push_back(std::move(*config));
}

// True if one tensor holds several parameters, which must be taken apart first.
bool is_fused(const Catalog& catalog) {
  const formats::Traits& traits = formats::traits_of(catalog.format);
  return traits.unfuse && families::dialect_of(catalog) == traits.dialect;
}

bool unfuse_one(Catalog& fused, Catalog& other, const Engine& engine) {
  lend_config(other, fused);
  try {
    Catalog copy = fused;
    fused = formats::traits_of(fused.format).unfuse(std::move(copy));
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    warn(fused, other, error.problem(), engine);
    return false;
  }
}

// True if names of a trainer's own model (torchtitan's, nanotron's) became
// those of transformers, which the other side has.
bool take_hf_names(Catalog& own, const Catalog& other, const Engine& engine) {
  const std::string_view owner = runs::owner_of_names(own);
  if (owner.empty() || owner == runs::owner_of_names(other)) return false;
  try {
    Catalog copy = own;
    lend_config(other, copy);
    locate(copy);
    runs::take_transformers_names(copy);
    own = std::move(copy);
    return true;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    warn(own, other, error.problem(), engine);
    return false;
  }
}

// Megatron's optimizer under the names that it gets on its way to transformers.
// Nothing if not all of the model is there, or the state is not Adam's.
std::optional<Catalog> with_optimizer(const Catalog& catalog,
                                      const families::TranslateOptions& options,
                                      const Engine& engine) {
  try {
    return families::translate(Catalog(catalog), options);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    engine.warn(fmt::format("{}: optimizer state keeps its names: {}",
                            catalog.path, error.problem()));
    return std::nullopt;
  }
}

// `trained`: the other side has an optimizer, too.
void bring(Catalog& catalog, const std::string& family, bool trained,
           const Engine& engine) {
  if (families::dialect_of(catalog) == "hf") return;
  families::TranslateOptions options{.to = "hf", .family = family};
  const double theta = families::theta_of(catalog);
  std::optional<Catalog> all;
  if (trained && families::has_optimizer(catalog) &&
      families::dialect_of(catalog) == "mcore")
    all = with_optimizer(catalog, options, engine);
  options.lenient = true;
  catalog =
      all ? std::move(*all) : families::translate(std::move(catalog), options);
  prove_buffers(catalog, theta);
}

// If one side has a sum, or another function, of what the other has, asks the
// other for it: both are rounded, and B was made from A.
void compare_as_made(Catalog& a, Catalog& b) {
  std::unordered_map<std::string_view, Tensor*> of_a;
  for (Tensor& tensor : a.tensors) of_a.emplace(tensor.name, &tensor);
  const auto only = [](const Tensor& tensor, uint8_t transform) {
    return !tensor.pieces.empty() &&
           std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
             return piece.transform == transform;
           });
  };
  for (Tensor& tensor : b.tensors) {
    const auto found = of_a.find(tensor.name);
    if (found == of_a.end() || !only(*found->second, 0) ||
        found->second->dtype != tensor.dtype || tensor.pieces.empty())
      continue;
    const uint8_t inverse = families::inverse_of(tensor.pieces[0].transform);
    if (inverse == 0 || !only(tensor, families::inverse_of(inverse))) continue;
    for (Piece& piece : tensor.pieces) piece.transform = 0;
    for (Piece& piece : found->second->pieces) piece.transform = inverse;
  }
}

bool has_numbers(const Catalog& catalog) {
  const std::string_view side = families::dialect_of(catalog);
  return !families::values_of(catalog, side).source.empty() ||
         !families::values_of(catalog, "hf").source.empty();
}

bool translate_both(Catalog& a, Catalog& b, const std::string& family,
                    const Engine& engine) {
  families::TranslateOptions options{.to = "hf", .family = family};
  const auto of_a = families::find_family(a, options);
  const auto of_b = families::find_family(b, options);
  if (!of_a && !of_b) {
    engine.warn(fmt::format(
        "cannot map the names of {} ({}) to those of {} ({}); pass --family "
        "NAME to compare them as one model",
        a.path, families::dialect_of(a), b.path, families::dialect_of(b)));
    return false;
  }
  const std::string name_a = (of_a ? of_a : of_b)->name();
  const std::string name_b = (of_b ? of_b : of_a)->name();
  const bool trained_a = families::has_optimizer(a);
  const bool trained_b = families::has_optimizer(b);
  const auto bring_a = [&] {
    bring(a, of_a ? family : name_a, trained_b, engine);
  };
  const auto bring_b = [&] {
    bring(b, of_b ? family : name_b, trained_a, engine);
  };
  try {
    if (!has_numbers(a) && has_numbers(b)) {
      bring_b();
      lend_config(b, a);
      bring_a();
    } else {
      bring_a();
      lend_config(a, b);
      bring_b();
    }
    compare_as_made(a, b);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    warn(a, b, error.problem(), engine);
    return false;
  }
  return true;
}

// One of Megatron's formats counts steps for each parameter, another once,
// among the values.
void drop_counts(Catalog& a, Catalog& b) {
  const auto is_count = [](const Tensor& tensor) {
    return tensor.kind == Kind::optim && tensor.state == "step" &&
           element_count(tensor.shape) == 1;
  };
  const bool of_a = std::ranges::any_of(a.tensors, is_count);
  const bool of_b = std::ranges::any_of(b.tensors, is_count);
  if (of_a != of_b) std::erase_if(of_a ? a.tensors : b.tensors, is_count);
}

// Each of Megatron's formats numbers and spells modules in its own way.
bool canonical_both(Catalog& a, Catalog& b, const Engine& engine) {
  if (names_of(a) == names_of(b)) return false;
  if (a.format != b.format) drop_counts(a, b);
  try {
    for (Catalog* catalog : {&a, &b}) {
      Catalog copy = *catalog;
      locate(copy);
      load_objects(copy);
      megatron::to_canonical(copy);
      *catalog = std::move(copy);
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    warn(a, b, error.problem(), engine);
    return false;
  }
  return true;
}

// Maps the formats' different words for a state to a common one.
std::string_view common_state(std::string_view state) {
  constexpr std::string_view kMasters[] = {
      "param", "fp32_param", "master", "master_param", "main", "fp32"};
  return std::ranges::count(kMasters, state) != 0 ? "master" : state;
}

// Gives B's optimizer tensors the names of A's: those with the same parameter
// and state.
void name_states(const Catalog& a, Catalog& b) {
  using Key = std::pair<std::string_view, std::string_view>;
  const auto key = [](const Tensor& tensor) {
    return Key(tensor.param, common_state(tensor.state));
  };
  const auto is_state = [](const Tensor& tensor) {
    return tensor.kind == Kind::optim && !tensor.param.empty() &&
           !tensor.state.empty();
  };
  std::map<Key, std::vector<const Tensor*>> of_a;
  std::map<Key, uint32_t> count_b;
  std::unordered_set<std::string> taken;
  for (const Tensor& tensor : a.tensors)
    if (is_state(tensor)) of_a[key(tensor)].push_back(&tensor);
  for (const Tensor& tensor : b.tensors) {
    taken.insert(tensor.name);
    if (is_state(tensor)) ++count_b[key(tensor)];
  }
  for (Tensor& tensor : b.tensors) {
    if (!is_state(tensor)) continue;
    const auto same = of_a.find(key(tensor));
    if (same == of_a.end() || same->second.size() != 1 ||
        count_b[key(tensor)] != 1)
      continue;
    const std::string& name = same->second.front()->name;
    if (name == tensor.name || !taken.insert(name).second) continue;
    tensor.name = name;
  }
}

size_t names_in_both(const Catalog& a, const Catalog& b) {
  const Names of_b = names_of(b);
  const Names of_a = names_of(a);
  return static_cast<size_t>(std::ranges::count_if(
      of_a, [&](std::string_view name) { return of_b.contains(name); }));
}

bool unwrap(Catalog& catalog) {
  return families::unwrap(catalog, families::configured_family(catalog).get());
}

// Takes the model of either side out of the dict that it is in, if more names
// are then the other's.
bool models_found(Catalog& a, Catalog& b) {
  Catalog inner_a = a, inner_b = b;
  const bool in_a = name_as_only_part(inner_a);
  const bool in_b = name_as_only_part(inner_b);
  if (!in_a && !in_b) return false;
  if (in_a) unwrap(inner_a);
  if (in_b) unwrap(inner_b);
  const size_t before = names_in_both(a, b);
  // Or names of another dialect, which are translated later.
  const auto is_named = [](const Catalog& whole, const Catalog& inner) {
    return families::dialect_of(whole).empty() &&
           !families::dialect_of(inner).empty();
  };
  if (in_a && (names_in_both(inner_a, b) > before || is_named(a, inner_a))) {
    a = std::move(inner_a);
  } else if (in_b &&
             (names_in_both(a, inner_b) > before || is_named(b, inner_b))) {
    b = std::move(inner_b);
  } else if (in_a && in_b && names_in_both(inner_a, inner_b) > before) {
    a = std::move(inner_a);
    b = std::move(inner_b);
  } else {
    return false;
  }
  return true;
}

bool models_meet(Catalog& a, Catalog& b, const std::string& family,
                 const Engine& engine) {
  bool met = names_of(a) != names_of(b) && models_found(a, b);
  if (names_of(a) != names_of(b))
    for (Catalog* catalog : {&a, &b}) met = unwrap(*catalog) || met;
  if (names_of(a) != names_of(b))
    for (Catalog* catalog : {&a, &b})
      if (const std::string prefix = families::foreign_prefix(*catalog);
          !prefix.empty()) {
        apply_prefix_mapping(*catalog, {{prefix, ""}});
        met = true;
      }
  if (take_hf_names(a, b, engine)) met = true;
  if (take_hf_names(b, a, engine)) met = true;
  if (is_fused(a) != is_fused(b)) {
    Catalog& fused = is_fused(a) ? a : b;
    Catalog& other = is_fused(a) ? b : a;
    if (families::dialect_of(other).empty()) return false;
    if (names_of(a) == names_of(b)) return false;
    if (!unfuse_one(fused, other, engine)) return false;
    met = true;
  }
  const std::string_view from_a = families::dialect_of(a);
  const std::string_view from_b = families::dialect_of(b);
  if (from_a.empty() || from_b.empty()) return met;
  if (from_a == "mcore" && from_b == "mcore")
    return canonical_both(a, b, engine);
  if (from_a == from_b) return met;
  return translate_both(a, b, family, engine) || met;
}

// Releases of transformers have put different prefixes before one name, or
// spelled them differently (backbone.embedding, backbone.embeddings): the
// family's name of each tensor. Empty if two have the same.
std::vector<std::string> names_in(const families::Family& family,
                                  const Catalog& catalog) {
  std::vector<std::string> names;
  for (const Tensor& tensor : catalog.tensors)
    names.push_back(tensor.kind == Kind::model ? family.normal_name(tensor.name)
                                               : tensor.name);
  const Names unique(names.begin(), names.end());
  return unique.size() == names.size() ? names : std::vector<std::string>();
}

void name_as_family(const families::Family& family,
                    std::vector<std::string> names, Catalog& catalog) {
  for (size_t i = 0; i < names.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    tensor.name = std::move(names[i]);
    if (!tensor.param.empty()) tensor.param = family.normal_name(tensor.param);
  }
}

// Under the names that the family has, where both are transformers' and more
// tensors meet there. Else names stay as the user knows them.
bool hf_meet(Catalog& a, Catalog& b, const std::string& name) {
  if (names_of(a) == names_of(b) || families::dialect_of(a) != "hf" ||
      families::dialect_of(b) != "hf")
    return false;
  families::TranslateOptions options{.to = "hf", .family = name};
  auto family = families::find_family(a, options);
  if (!family) family = families::find_family(b, options);
  if (!family) return false;
  std::vector<std::string> of_a = names_in(*family, a);
  std::vector<std::string> of_b = names_in(*family, b);
  const auto missing = [](const Names& from, const Names& to) {
    return std::ranges::count_if(
        from, [&](std::string_view one) { return !to.contains(one); });
  };
  const Names left(of_a.begin(), of_a.end()), right(of_b.begin(), of_b.end());
  if (left.empty() || right.empty() ||
      missing(left, right) >= missing(names_of(a), names_of(b)))
    return false;
  name_as_family(*family, std::move(of_a), a);
  name_as_family(*family, std::move(of_b), b);
  return true;
}

// One side may have the names of transformers' modules, the other those of its
// files.
bool hub_meet(Catalog& a, Catalog& b) {
  if (names_of(a) == names_of(b) || families::dialect_of(a) != "hf" ||
      families::dialect_of(b) != "hf")
    return false;
  auto config = formats::config_json_of(a);
  if (config.is_null()) config = formats::config_json_of(b);
  bool met = false;
  for (Catalog* catalog : {&a, &b}) {
    if (!families::has_module_names(*catalog, config)) continue;
    try {
      Catalog copy = *catalog;
      locate(copy);
      families::take_hf_names(copy, config, families::HfNames::kHub);
      *catalog = std::move(copy);
      met = true;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUnfaithful) throw;
    }
  }
  return met;
}

// One side may have a layer's experts in one tensor, the other one by one.
bool split_as_other(Catalog& catalog, const Catalog& other) {
  const auto trained = [](const Tensor& tensor) {
    return tensor.kind == Kind::model && families::is_trained_experts(tensor);
  };
  if (std::ranges::none_of(catalog.tensors, trained)) return false;
  const Names there = names_of(other);
  locate(catalog);
  const size_t before = catalog.tensors.size();
  catalog.tensors = families::split_trained(
      std::move(catalog.tensors),
      [&](const std::string& name) { return there.contains(name); });
  return catalog.tensors.size() != before;
}

}  // namespace

bool meet(Catalog& a, Catalog& b, const std::string& family,
          const Engine& engine) {
  bool met = models_meet(a, b, family, engine);
  if (hub_meet(a, b)) met = true;
  if (hf_meet(a, b, family)) met = true;
  if (split_as_other(a, b) || split_as_other(b, a)) met = true;
  name_states(a, b);
  return met;
}

}  // namespace ckpt::library
