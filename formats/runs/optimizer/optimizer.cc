// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/optimizer/evidence.h"
#include "formats/runs/optimizer/naming.h"
#include "formats/runs/optimizer/preorder.h"
#include "formats/runs/optimizer/split.h"
#include "formats/runs/optimizer/stated_names.h"
#include "lib/text/format.h"
#include "models/wrapper.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

bool by_decay(size_t group, const Parameter& parameter) {
  return !parameter.certain || (group == 0) == parameter.decays;
}

// The Trainer before transformers 4.49: norms decay, too, unless their class is
// torch's or one that registered itself, as Llama's does and Qwen2's doesn't.
// With registered classes alone it is the same rule as today's.
constexpr std::string_view kBiases = "biases";
bool by_bias(size_t group, const Parameter& parameter) {
  return !parameter.certain ||
         (group == 0) == (parameter.name.find("bias") == std::string::npos);
}

// With GaLore and APOLLO, the Trainer's second group has weights of nn.Linear
// that --optim_target_modules names, the first all others
// (trainer_optimizer.py, _setup_low_rank_optimizer).
constexpr std::string_view kProjections = "projections";
bool by_projection(size_t group, const Parameter& parameter) {
  const std::string& name = parameter.name;
  return group == 0 ||
         (parameter.shape.size() == 2 && name.ends_with(".weight") &&
          name.find("embed") == name.npos && name.find("wte") == name.npos);
}

bool has_projections(const Groups& groups) {
  return groups.size() == 2 && !groups[0].rank && groups[1].rank;
}

// What speaks against the Trainer's having made the groups: it gives the second
// no weight decay, and both one learning rate. "" if nothing does.
std::string of_another_rule(const Groups& groups) {
  if (groups.size() != 2)
    return fmt::format(
        "{} groups of parameters, the Trainer's own optimizer has 2",
        groups.size());
  // What another trainer's one group became has its decay in both.
  if (groups[1].weight_decay.value_or(0) != 0 &&
      groups[1].weight_decay != groups[0].weight_decay)
    return fmt::format(
        "its second group has the weight decay {}, that of the Trainer's own "
        "optimizer has none",
        *groups[1].weight_decay);
  if (groups[0].lr != groups[1].lr)
    return "its groups have unlike learning rates, those of the Trainer's own "
           "optimizer have one";
  return {};
}

// torch's own list of names beside the numbers.
std::vector<std::string> names_in(const Document& document, Id group) {
  const Id list = document.find(group, "param_names");
  std::vector<std::string> names;
  if (!document.is(list, Type::kList)) return names;
  for (const Id name : document.items(list)) {
    if (!document.is(name, Type::kString)) return {};
    names.emplace_back(document.text(name));
  }
  return names;
}

// " in groups of 26 and 1": as many parameters as the model has may still be
// split unlike the rule does it.
std::string sizes_of(const Groups& groups, bool decay) {
  if (!decay || groups.size() != 2) return {};
  return fmt::format(" in groups of {} and {} (by weight decay)",
                     groups[0].numbers.size(), groups[1].numbers.size());
}

}  // namespace

std::optional<Groups> read_groups(const Document& document, Id optimizer,
                                  const std::string& path) {
  const Id groups = document.find(optimizer, "param_groups");
  if (!document.is(groups, Type::kList)) return std::nullopt;
  Groups result;
  std::set<uint64_t> seen;
  for (const Id group : document.items(groups)) {
    const Id params = document.find(group, "params");
    if (!document.is(params, Type::kList))
      throw input_error({path, {}}, "param_groups: a group without params");
    Group& one = result.emplace_back();
    one.weight_decay = document.as_real(document.find(group, "weight_decay"));
    one.lr = document.as_real(document.find(group, "lr"));
    if (const auto rank = document.as_int(document.find(group, "rank"));
        rank && *rank > 0)
      one.rank = static_cast<uint64_t>(*rank);
    one.names = names_in(document, group);
    for (const Id param : document.items(params)) {
      const auto number = document.as_int(param);
      if (!number) return std::nullopt;  // names
      if (*number < 0 || !seen.insert(static_cast<uint64_t>(*number)).second)
        throw input_error({path, {}}, "param_groups: parameter {} twice",
                          *number);
      one.numbers.push_back(static_cast<uint64_t>(*number));
    }
  }
  return result;
}

Names name_parameters(const Catalog& catalog, const Range& range,
                      const Groups& groups, const std::string& rule,
                      const std::optional<ParameterOrder>& order,
                      const std::string& why_not) {
  Names names{.groups = groups, .parameters = {}, .why = {}, .why_not = {}};
  const auto refuse = [&](std::string why) {
    names.why_not = std::move(why);
    return names;
  };
  if (!order) return refuse(why_not);
  const Evidence evidence = evidence_of(catalog, range, groups);
  if (evidence.odd)
    return refuse(fmt::format("the states of parameter {} have unlike shapes",
                              *evidence.odd));
  std::vector<std::vector<Wanted>> wanted;
  size_t count = 0;
  for (const auto& group : groups) {
    auto& shapes = wanted.emplace_back();
    for (const uint64_t number : group.numbers) {
      const auto found = evidence.shapes.find(number);
      shapes.push_back(found == evidence.shapes.end() ? std::nullopt
                                                      : found->second);
    }
    count += group.numbers.size();
  }
  const bool decay = rule == "decay" || rule == kBiases;
  if (decay && groups.size() != 2) return refuse(of_another_rule(groups));
  const Split split = only_split(order->parameters, wanted,
                                 rule == kBiases        ? by_bias
                                 : rule == kProjections ? by_projection
                                 : decay                ? by_decay
                                                        : nullptr);
  switch (split.ways) {
    case Ways::kOne:
      break;
    case Ways::kNone:
      names.refuted = true;
      if (count == order->parameters.size() && groups.size() == 1)
        return refuse(fmt::format(
            "its states have other shapes than the {} parameters of {}: they "
            "are another model's, whose file may be missing, or in another "
            "order",
            count, order->why));
      return refuse(fmt::format(
          "its {} parameters{} do not fit {} ({} parameters)", count,
          sizes_of(groups, decay), order->why, order->parameters.size()));
    case Ways::kMany:
      return refuse(fmt::format("its {} parameters fit {} in more than one way",
                                count, order->why));
    case Ways::kTooMany:
      return refuse("there are too many ways to look at");
  }
  for (const auto& group : split.groups) {
    auto& parameters = names.parameters.emplace_back();
    for (const size_t p : group) parameters.push_back(order->parameters[p]);
  }
  names.why = order->why;
  if (decay) names.why += ", in two groups by weight decay";
  if (rule == kProjections) names.why += ", in two groups by projection";
  if (rule == kBiases) names.why += " as before transformers 4.49";
  return names;
}

namespace {

bool same_names(const Names& a, const Names& b) {
  return std::ranges::equal(
      a.parameters, b.parameters, [](const auto& one, const auto& other) {
        return std::ranges::equal(one, other, {}, &Parameter::name,
                                  &Parameter::name);
      });
}

// The Trainer has had two rules. If one is refuted, it was the other.
Names by_either_rule(const Names& names, const Names& older) {
  if (older.refuted || same_names(names, older)) return names;
  if (names.refuted) return older;
  if (!names.why_not.empty()) return names;
  Names neither = names;
  neither.parameters.clear();
  neither.why_not =
      "they fit the groups of transformers 4.49 and those of older versions";
  return neither;
}

}  // namespace

void name_groups(Catalog& catalog,
                 const std::vector<std::vector<Parameter>>& parameters,
                 const std::string& prefix, const std::string& word) {
  using pickle::Type;
  const auto object =
      std::ranges::find(catalog.objects, word + "param_groups", &Object::name);
  if (object == catalog.objects.end() || !object->document) return;
  const pickle::Document& from = *object->document;
  if (!from.is(object->node, Type::kList) ||
      from.items(object->node).size() != parameters.size())
    return;
  auto document = std::make_shared<pickle::Document>();
  std::unordered_map<pickle::Id, pickle::Id> substitutes;
  for (size_t g = 0; g < parameters.size(); ++g) {
    const pickle::Id numbers = from.find(from.items(object->node)[g], "params");
    if (numbers == pickle::kNoId) return;
    const pickle::Id list = document->add_container(Type::kList);
    for (const Parameter& one : parameters[g])
      document->append(list, document->add_string(prefix + one.name));
    substitutes[numbers] = list;
  }
  object->node = document->import(from, object->node, substitutes);
  object->document = std::move(document);
}

namespace {

// Values of a state are no tensors, but of the same parameter:
// "optimizer.state.3.step".
void name_values(Catalog& catalog,
                 const std::map<uint64_t, const Parameter*>& by_number,
                 const std::string& prefix, const std::string& word) {
  const std::string above = word + "state.";
  for (Object& object : catalog.objects) {
    if (!object.name.starts_with(above)) continue;
    const size_t dot = object.name.find('.', above.size());
    const auto number = whole_number(
        std::string_view(object.name).substr(above.size(), dot - above.size()));
    const auto found = number ? by_number.find(*number) : by_number.end();
    if (dot != object.name.npos && found != by_number.end())
      object.name =
          above + prefix + found->second->name + object.name.substr(dot);
  }
}

}  // namespace

void apply(Catalog& catalog, const Range& range, const Names& names,
           const std::string& prefix, const std::string& word) {
  name_groups(catalog, names.parameters, prefix, word);
  std::map<uint64_t, const Parameter*> by_number;
  for (size_t g = 0; g < names.parameters.size(); ++g)
    for (size_t i = 0; i < names.parameters[g].size(); ++i)
      by_number[names.groups[g].numbers[i]] = &names.parameters[g][i];
  name_values(catalog, by_number, prefix, word);
  for (size_t t = range.begin; t < range.end; ++t) {
    Tensor& tensor = catalog.tensors[t];
    tensor.kind = Kind::optim;
    if (names.stated && !tensor.state.empty()) {
      tensor.state = std::string(bare_state(tensor.state));
      tensor.param =
          prefix + names.below + families::without_wrappers(tensor.param);
      tensor.name = tensor.param + "." + tensor.state;
      continue;
    }
    const auto number = whole_number(tensor.param);
    const auto found = number ? by_number.find(*number) : by_number.end();
    if (found == by_number.end()) {
      tensor.name = word + tensor.name;
      continue;
    }
    tensor.state = std::string(bare_state(tensor.state));
    tensor.param = prefix + found->second->name;
    tensor.name = tensor.param + "." + tensor.state;
  }
}

void number_again(Catalog& catalog, size_t begin, const std::string& prefix,
                  const std::string& word, const std::string& path) {
  std::set<std::string_view> model;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) model.insert(tensor.name);
  bool any = false;
  for (size_t t = begin; t < catalog.tensors.size(); ++t) {
    Tensor& tensor = catalog.tensors[t];
    if (tensor.kind != Kind::optim || !tensor.param.starts_with(prefix) ||
        model.contains(tensor.param))
      continue;
    const std::string number = tensor.param.substr(prefix.size());
    if (!whole_number(number)) continue;
    tensor.param = number;
    tensor.name = fmt::format("{}state.{}.{}", word, number, tensor.state);
    any = true;
  }
  if (any)
    catalog.problems.push_back(
        warning("numbered_state", {path, {}},
                "the optimizer's state is keyed by parameter index: nothing "
                "that was read has the order of the model's parameters"));
}

void leave_numbered(Catalog& catalog, const Range& range,
                    const std::string& word, const std::string& file,
                    const std::string& why, Assumable assumable) {
  for (size_t t = range.begin; t < range.end; ++t) {
    Tensor& tensor = catalog.tensors[t];
    tensor.kind = Kind::optim;
    tensor.name = word + tensor.name;
  }
  if (range.begin == range.end) return;
  catalog.problems.push_back(
      warning("numbered_state", {file, {}},
              "the optimizer's state is keyed by parameter index: {}{}", why,
              assumable == Assumable::kNo
                  ? ""
                  : " (--assume-order module, decay or a file of their names "
                    "names them)"));
}

namespace {

// How many parameters have a state that tells their shape.
size_t shapes_told(const Catalog& catalog, const Range& range,
                   const Groups& groups) {
  const Evidence evidence = evidence_of(catalog, range, groups);
  return static_cast<size_t>(std::ranges::count_if(
      evidence.shapes, [](const auto& one) { return one.second.has_value(); }));
}

// True if the parameters that both have come in the same order. The family
// knows its norms.
bool agrees(ParameterOrder& stored, const ParameterOrder& family) {
  std::map<std::string_view, size_t> place;
  for (const Parameter& one : family.parameters)
    place.emplace(one.name, place.size());
  size_t next = 0;
  for (Parameter& one : stored.parameters) {
    const auto found = place.find(one.name);
    if (found == place.end()) continue;
    if (found->second < next) return false;
    next = found->second;
    one.decays = family.parameters[next].decays;
    one.certain = family.parameters[next].certain;
  }
  return true;
}

// A pickle has the order of modules, if nothing speaks against it: neither its
// own names nor the family's modules, which may take its place.
std::optional<ParameterOrder> proven_order(
    const Catalog& catalog, const Range& range, const Groups& groups,
    std::span<const Tensor* const> model, bool pickled, const ModelFacts& facts,
    std::string& why_not) {
  std::optional<ParameterOrder> family;
  if (!pickled || !facts.type.empty())
    family = family_order(model, facts, why_not);
  if (!pickled) return family;
  std::string doubt = doubt_in_order(model);
  ParameterOrder stored = stored_order(model);
  if (doubt.empty() &&
      shapes_told(catalog, range, groups) < stored.parameters.size())
    doubt = alone_in_shard(model);
  if (doubt.empty()) {
    if (!family || agrees(stored, *family)) return stored;
    why_not = fmt::format("the order in the pickle is not that of {}",
                          printable(family->why));
    return std::nullopt;
  }
  if (!family) why_not = doubt;
  return family;
}

}  // namespace

Names named(const Catalog& catalog, const Range& range, const Groups& groups,
            const std::string& rule, std::span<const Tensor* const> model,
            bool pickled, const ModelFacts& facts,
            const formats::ReadOptions& options, const std::string& path) {
  if (have_names(groups)) return by_stated_names(catalog, range, groups, model);
  if (!options.assume_order.empty()) {
    const Asked asked = asked_order(options.assume_order, model);
    Names names =
        name_parameters(catalog, range, groups, asked.rule, asked.order, {});
    if (!names.why_not.empty())
      throw usage_error({path, {}}, "--assume-order {}: {}",
                        options.assume_order, names.why_not);
    return names;
  }
  std::string why_not;
  const auto order =
      proven_order(catalog, range, groups, model, pickled, facts, why_not);
  const auto by = [&](const std::string& one) {
    return name_parameters(catalog, range, groups, one, order, why_not);
  };
  if (rule == "decay" && has_projections(groups))
    return by(std::string(kProjections));
  const bool older = facts.version == 0 || facts.version < 4 ||
                     (facts.version == 4 && facts.minor < 49);
  if (rule == "decay" && order)
    if (const std::string why = of_another_rule(groups); !why.empty())
      return name_parameters(catalog, range, groups, rule, std::nullopt, why);
  if (rule == "module" && order) {
    Names names = by(rule);
    if (names.why_not.empty()) return names;
    if (const auto tied = without_tied_head(*order))
      if (Names rest =
              name_parameters(catalog, range, groups, rule, tied, why_not);
          rest.why_not.empty())
        return rest;
    return names;
  }
  if (rule != "decay" || !older || !order) return by(rule);
  return by_either_rule(by(rule), by(std::string(kBiases)));
}

}  // namespace ckpt::runs
