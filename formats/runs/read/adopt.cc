// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/adopt.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/runs/find/trainer.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer/naming.h"
#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/optimizer/unnamed.h"
#include "models/wrapper.h"

namespace ckpt::runs {
namespace {

using formats::ReadOptions;

bool has_object(const Catalog& catalog, const std::string& beginning) {
  return std::ranges::any_of(catalog.objects, [&](const Object& object) {
    return object.name.starts_with(beginning);
  });
}

// torchtitan: all parts in one DCP.
void adopt_whole(Catalog& catalog, const Trainer& trainer) {
  std::map<std::string, std::string> renamed;
  std::vector<std::string> before;
  for (const Tensor& tensor : catalog.tensors) before.push_back(tensor.name);
  Namer(trainer.models[0], "").name(catalog.tensors);
  number_again(catalog, 0, "", "optimizer.", catalog.path);
  for (size_t t = 0; t < before.size(); ++t)
    renamed[before[t]] = catalog.tensors[t].name;
  if (catalog.skeleton)
    for (auto& [node, name] : catalog.skeleton->tensors)
      if (const auto found = renamed.find(name); found != renamed.end())
        name = found->second;
  catalog.run = Run{.trainer = trainer.name,
                    .step = number_of(catalog, trainer.step_object)};
  say_unnamed(catalog);
}

// The value of nested dicts at "a.b"; kNoId if absent.
pickle::Id value_at(const Skeleton& skeleton, const std::string& path) {
  pickle::Id value = skeleton.root;
  for (size_t at = 0; at <= path.size() && value != pickle::kNoId;) {
    const size_t dot = std::min(path.find('.', at), path.size());
    value = skeleton.document->find(value, path.substr(at, dot - at));
    at = dot + 1;
  }
  return value;
}

std::optional<uint64_t> step_in(const Skeleton& skeleton,
                                const std::string& path) {
  const pickle::Id value = value_at(skeleton, path);
  if (path.empty() || value == pickle::kNoId) return std::nullopt;
  const auto number = skeleton.document->as_int(value);
  if (!number || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

// The optimizers' state dicts in a pickle, and the prefixes of their names.
using StateDicts = std::vector<std::pair<std::string, pickle::Id>>;

StateDicts state_dicts_in(const Skeleton& skeleton, const std::string& path) {
  const pickle::Document& document = *skeleton.document;
  const pickle::Id all = value_at(skeleton, path);
  StateDicts found;
  if (all == pickle::kNoId) return found;
  if (document.is(all, pickle::Type::kList)) {
    const auto items = document.items(all);
    for (size_t i = 0; i < items.size(); ++i)
      found.emplace_back(fmt::format("{}.{}.", path, i), items[i]);
  } else if (const auto pairs = document.as_pairs(all)) {
    for (size_t i = 0; i + 1 < pairs->size(); i += 2)
      if (document.is((*pairs)[i], pickle::Type::kString))
        found.emplace_back(
            fmt::format("{}.{}.", path, document.text((*pairs)[i])),
            (*pairs)[i + 1]);
  }
  return found;
}

using Renamed = std::map<std::string, std::string>;

void name_pickled_optimizer(Catalog& catalog, const std::string& prefix,
                            pickle::Id state_dict,
                            const std::vector<const Tensor*>& model,
                            const ReadOptions& options, Renamed& renamed) {
  // The tensors of one optimizer are adjacent in the pickle.
  Range range{catalog.tensors.size(), 0};
  for (size_t t = 0; t < catalog.tensors.size(); ++t) {
    if (!catalog.tensors[t].name.starts_with(prefix)) continue;
    range.begin = std::min(range.begin, t);
    range.end = t + 1;
  }
  if (range.end == 0) return;
  std::vector<std::string> before;
  for (size_t t = range.begin; t < range.end; ++t)
    before.push_back(catalog.tensors[t].name);
  const auto groups =
      read_groups(*catalog.skeleton->document, state_dict, catalog.path);
  if (!groups) {
    for (size_t t = range.begin; t < range.end; ++t) {
      Tensor& tensor = catalog.tensors[t];
      if (!tensor.param.empty() && !tensor.state.empty())
        tensor.name = tensor.param + "." + tensor.state;
    }
  } else {
    const Names names = named(catalog, range, *groups, "module", model, true,
                              {}, options, catalog.path);
    if (!names.why_not.empty()) {
      leave_numbered(catalog, range, "optimizer.", catalog.path, names.why_not,
                     Assumable::kYes);
    } else {
      apply(catalog, range, names, "", "optimizer.");
      catalog.assumptions.push_back(
          fmt::format("optimizer: numbers are parameters by {}", names.why));
    }
  }
  for (size_t t = range.begin; t < range.end; ++t)
    renamed[before[t - range.begin]] = catalog.tensors[t].name;
}

// Lightning's file, Composer's: everything in one pickle.
void adopt_pickle(Catalog& catalog, const Trainer& trainer,
                  const ReadOptions& options) {
  const Pickled& pickled = trainer.pickled;
  std::vector<Tensor> copies;
  Renamed renamed;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    if (!tensor.name.starts_with(pickled.model)) {
      tensor.kind = Kind::other;
      continue;
    }
    const std::string before = tensor.name;
    tensor.kind = Kind::model;
    tensor.name =
        families::without_wrappers(tensor.name.substr(pickled.model.size()));
    renamed[before] = tensor.name;
    copies.push_back(tensor);
  }
  std::vector<const Tensor*> model;
  model.reserve(copies.size());
  for (const Tensor& copy : copies) model.push_back(&copy);
  for (const auto& [prefix, id] :
       state_dicts_in(*catalog.skeleton, pickled.optimizers))
    name_pickled_optimizer(catalog, prefix, id, model, options, renamed);
  for (auto& [node, name] : catalog.skeleton->tensors)
    if (const auto found = renamed.find(name); found != renamed.end())
      name = found->second;
  catalog.run = Run{.trainer = trainer.name,
                    .step = step_in(*catalog.skeleton, trainer.step_object)};
  say_unnamed(catalog);
}

// "a|b": one of the two. In a pickle it may be inside an object.
bool has_one_of(const Catalog& catalog, std::string_view signs) {
  while (!signs.empty()) {
    const size_t end = std::min(signs.find('|'), signs.size());
    const std::string sign(signs.substr(0, end));
    if (has_object(catalog, sign) ||
        (catalog.skeleton && catalog.skeleton->document &&
         value_at(*catalog.skeleton, sign) != pickle::kNoId))
      return true;
    signs.remove_prefix(std::min(end + 1, signs.size()));
  }
  return false;
}

bool is_pickle_of(const Catalog& catalog, const Trainer& trainer) {
  const Pickled& pickled = trainer.pickled;
  return has_one_of(catalog, pickled.sign) &&
         std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
           return tensor.name.starts_with(pickled.model);
         });
}

}  // namespace

void adopt(Catalog& catalog, const std::string& only,
           const ReadOptions& options) {
  const auto wanted = [&](std::string_view name) {
    return only.empty() || only == name;
  };
  if (catalog.run) return;
  if (catalog.format == "torch" && catalog.skeleton) {
    for (const Trainer& trainer : trainers())
      if (wanted(trainer.name) && is_pickle_of(catalog, trainer))
        return adopt_pickle(catalog, trainer, options);
    return;
  }
  if (catalog.format != "dcp") return;
  for (const Trainer& trainer : trainers())
    if (!trainer.objects.empty() && wanted(trainer.name) &&
        std::ranges::all_of(trainer.objects, [&](const std::string& object) {
          return has_one_of(catalog, object);
        }))
      return adopt_whole(catalog, trainer);
}

}  // namespace ckpt::runs
