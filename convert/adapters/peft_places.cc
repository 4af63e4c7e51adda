// SPDX-License-Identifier: Apache-2.0
#include "convert/adapters/peft_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

class Base {
 public:
  Base(const Catalog& base, bool flat) : flat_(flat) {
    constexpr std::string_view kMatrix = ".weight";
    for (const Tensor& tensor : base.tensors) {
      if (tensor.kind != Kind::model || tensor.shape.size() < 2 ||
          !tensor.name.ends_with(kMatrix))
        continue;
      const std::string module =
          tensor.name.substr(0, tensor.name.size() - kMatrix.size());
      modules_[key(module)].push_back(module);
    }
  }

  std::string key(std::string module) const {
    if (flat_) std::ranges::replace(module, '.', '_');
    return module;
  }

  // What the base has before the module's name; several, if it fits in several
  // places.
  std::set<std::string> prefixes(const std::string& module) const {
    const std::string wanted = key(module);
    std::set<std::string> found;
    for (const auto& [name, all] : modules_) {
      if (!name.ends_with(wanted)) continue;
      const size_t at = name.size() - wanted.size();
      if (at == 0 || name[at - 1] == (flat_ ? '_' : '.'))
        found.insert(name.substr(0, at));
    }
    return found;
  }

  // The base's modules; empty if there are none.
  const std::vector<std::string>& at(const std::string& name) const {
    static const std::vector<std::string> kNone;
    const auto found = modules_.find(name);
    return found == modules_.end() ? kNone : found->second;
  }

 private:
  const bool flat_;
  std::map<std::string, std::vector<std::string>> modules_;
};

std::string called(const std::string& component, const std::string& module) {
  return component.empty() ? module : component + ": " + module;
}

class Placing {
 public:
  Placing(const Catalog& adapter, const Base& base,
          const std::string& component, const std::set<std::string>& modules)
      : adapter_(adapter),
        base_(base),
        component_(component),
        modules_(modules) {}

  // Nothing if the base has none of the modules.
  std::optional<Places> run() const {
    std::set<std::string> prefixes;
    for (const std::string& module : modules_) {
      prefixes = base_.prefixes(module);
      if (!prefixes.empty()) break;
    }
    if (prefixes.empty()) return std::nullopt;
    std::string lacking;
    std::optional<Places> found;
    for (const std::string& prefix : prefixes) {
      std::string missing;
      Places places = under(prefix, missing);
      if (!missing.empty()) {
        lacking = missing;
        continue;
      }
      if (found) refuse(*modules_.begin(), "fits in several places of it");
      found = std::move(places);
    }
    if (!found) refuse(lacking, "has no counterpart there");
    return found;
  }

 private:
  Places under(const std::string& prefix, std::string& missing) const {
    Places places;
    for (const std::string& module : modules_) {
      const auto& there = base_.at(prefix + base_.key(module));
      if (there.size() > 1)
        refuse(module, fmt::format("may be {} or {}", there[0], there[1]));
      if (there.empty()) {
        missing = module;
        return places;
      }
      places[module] = there[0];
    }
    return places;
  }

  [[noreturn]] void refuse(const std::string& module,
                           const std::string& why) const {
    throw unfaithful_error(
        {adapter_.path, called(component_, module)},
        "the adapter changes this module of its base, and it {}", why)
        .with_hint(
            "`ckpt inspect --tree` of both shows the names; the adapter was "
            "trained on another model, or the base is in other names than "
            "diffusers'");
  }

  const Catalog& adapter_;
  const Base& base_;
  const std::string& component_;
  const std::set<std::string>& modules_;
};

}  // namespace

std::map<std::string, Places> find_places(
    const Catalog& adapter, const Catalog& base,
    const std::map<std::string, std::set<std::string>>& modules, bool flat) {
  const Base index(base, flat);
  std::map<std::string, Places> found;
  for (const auto& [component, names] : modules)
    if (auto places = Placing(adapter, index, component, names).run())
      found[component] = std::move(*places);
  if (!found.empty()) return found;
  const auto& first = *modules.begin();
  throw unfaithful_error(
      {adapter.path, called(first.first, *first.second.begin())},
      "the base has no module of this name, nor any other that the adapter "
      "changes")
      .with_hint(
          "`ckpt inspect --tree` of both shows the names; of a pipeline, name "
          "the component that the adapter is for: ckpt convert MODEL/unet …");
}

}  // namespace ckpt::families
