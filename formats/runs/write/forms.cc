// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/forms.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/optimizer/preorder.h"
#include "formats/runs/read/step.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

// Which of the source's groups each parameter is in.
std::map<std::string_view, size_t> group_of(const Adam& adam) {
  std::map<std::string_view, size_t> known;
  for (size_t g = 0; g < adam.groups.size(); ++g)
    for (const std::string& param : adam.groups[g].params) known[param] = g;
  return known;
}

std::vector<const Tensor*> model_of(const Catalog& source) {
  std::vector<const Tensor*> model;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) model.push_back(&tensor);
  return model;
}

std::optional<ParameterOrder> order_of_family(const Catalog& source,
                                              std::string& why_not) {
  ModelFacts facts;
  for (const Sidecar& sidecar : source.sidecars)
    if (facts.type.empty() && io::base_name(sidecar.name) == "config.json")
      facts = facts_of(io::parent(sidecar.path));
  return family_order(model_of(source), facts, why_not);
}

// The order in which the source's own pickle has the module's state dict. What
// is not in the optimizer's groups may be a buffer, which has no number.
std::optional<ParameterOrder> order_of_pickle(const Adam& adam,
                                              const Catalog& source) {
  if (source.format != "torch" || !source.skeleton || !adam.ordered)
    return std::nullopt;
  const std::vector<const Tensor*> model = model_of(source);
  if (!doubt_in_order(model).empty()) return std::nullopt;
  ParameterOrder order = stored_order(model);
  const auto known = group_of(adam);
  if (!std::ranges::all_of(order.parameters, [&](const Parameter& one) {
        return known.contains(one.name);
      }))
    return std::nullopt;
  return order;
}

// The order in which the model registers its parameters: its family's, or, for
// a target whose groups don't depend on what a module is, that of the source's
// pickle.
ParameterOrder order_of(const Form& form, const Adam& adam,
                        const Catalog& source) {
  std::string why_not;
  if (auto order = order_of_family(source, why_not)) return *order;
  if (form.grouping != Grouping::kDecay)
    if (auto order = order_of_pickle(adam, source)) return *order;
  throw unfaithful_error({source.path, {}},
                         "{} counts the parameters in the order of the model's "
                         "modules: {}",
                         form.trainer, why_not)
      .with_hint(
          "--dp 2 goes by names with lightning and accelerate (DCP, for any "
          "number of ranks); a family's names behind a module's attribute: "
          "--rename takes it off");
}

// Options that all parameters of a group have in common.
void settle_options(const Form& form, const Adam& adam, const Catalog& source,
                    const std::map<std::string_view, size_t>& known,
                    AdamGroup& group) {
  const auto in_one = [&](const std::string& param) {
    return known.contains(param);
  };
  const auto leader = std::ranges::find_if(group.params, in_one);
  if (leader == group.params.end()) return;
  const size_t first = known.at(*leader);
  group.options = adam.groups[first].options;
  for (const std::string& param : group.params) {
    if (!in_one(param)) continue;
    const size_t other = known.at(param);
    std::string differs;
    if (other == first ||
        same_options(adam, adam.groups[first], adam.groups[other], &differs))
      continue;
    throw unfaithful_error(
        {source.path, printable(param)},
        "{} has it in one group with {}, whose options are others: {}",
        form.trainer, printable(*leader), differs)
        .with_hint(
            "accelerate, lightning and torchtitan take groups as they are; "
            "--model-only converts the model");
  }
}

AdamGroup without_decay(const Adam& adam, const AdamGroup& like) {
  AdamGroup group{.params = {}, .options = like.options};
  const pickle::Id none = adam.document->add_float(0.0);
  for (auto& [key, value] : group.options)
    if (key == "weight_decay") value = none;
  return group;
}

}  // namespace

namespace {

std::map<std::string_view, size_t> positions_in(
    const std::vector<std::string>& order) {
  std::map<std::string_view, size_t> places;
  for (size_t i = 0; i < order.size(); ++i) places.emplace(order[i], i);
  return places;
}

// Groups that options alone made come as their first parameters do.
void order_groups(const Adam& adam, const std::vector<std::string>& order,
                  std::vector<AdamGroup>& groups) {
  if (!adam.by_options) return;
  const auto places = positions_in(order);
  std::ranges::stable_sort(groups, {}, [&](const AdamGroup& group) {
    const auto found =
        group.params.empty() ? places.end() : places.find(group.params[0]);
    return found == places.end() ? order.size() : found->second;
  });
}

// Names in DCP are read as the live optimizer's order: that of the modules, or,
// where it is not known, that of the letters, which claims nothing.
std::vector<AdamGroup> listed(const Adam& adam, const Catalog& source) {
  std::vector<AdamGroup> groups = adam.groups;
  if (adam.ordered) return groups;
  const std::vector<std::string> order = known_order(source);
  const auto places = positions_in(order);
  const bool known = std::ranges::all_of(groups, [&](const AdamGroup& group) {
    return std::ranges::all_of(group.params, [&](const std::string& param) {
      return places.contains(param);
    });
  });
  for (AdamGroup& group : groups)
    if (known)
      std::ranges::sort(group.params, {}, [&](const std::string& param) {
        return places.at(param);
      });
    else
      std::ranges::sort(group.params);
  order_groups(adam, order, groups);
  return groups;
}

}  // namespace

bool follow(const std::vector<AdamGroup>& groups,
            const std::vector<std::string>& order) {
  const auto places = positions_in(order);
  for (const AdamGroup& group : groups) {
    size_t next = 0;
    for (const std::string& param : group.params) {
      const auto found = places.find(param);
      if (found == places.end() || found->second < next) return false;
      next = found->second;
    }
  }
  return true;
}

std::string trainer_in(const Catalog& source) {
  return source.run ? source.run->trainer : "";
}

bool has_one_file(std::string_view trainer) {
  const auto known = std::ranges::find(trainers(), trainer, &Trainer::name);
  return known != trainers().end() &&
         std::ranges::any_of(known->writes.forms, &Form::one_file);
}

bool wants_one_file(const Layout& layout) {
  const std::string trainer = layout.option(kTrainer);
  return has_one_file(trainer) && layout.topology.dp == 1 &&
         layout.name.ends_with(find_trainer(trainer).pickled.ending);
}

const Form& find_form(const Layout& layout, const std::string& source_trainer) {
  const std::string trainer = layout.option(kTrainer);
  const bool one_file = wants_one_file(layout);
  const bool sharded = layout.topology.dp > 1;
  const Form* best = nullptr;
  for (const Form& form : find_trainer(trainer).writes.forms)
    if (form.one_file == one_file && (!best || form.sharded == sharded))
      best = &form;
  if (best) return *best;
  std::string all;
  for (const Trainer& one : trainers())
    if (!one.writes.forms.empty()) all += (all.empty() ? "" : ", ") + one.name;
  throw unfaithful_error({}, "a step of {} is not written from {}", trainer,
                         source_trainer.empty() ? "a checkpoint of no trainer"
                                                : "one of " + source_trainer)
      .with_hint("--trainer takes: " + all +
                 "; --to dcp, --to megatron_torch_dist are formats of others");
}

std::vector<std::string> module_order(const Form& form, const Adam& adam,
                                      const Catalog& source) {
  std::vector<std::string> names;
  for (const Parameter& one : order_of(form, adam, source).parameters)
    names.push_back(one.name);
  return names;
}

std::vector<std::string> known_order(const Catalog& source) {
  std::vector<std::string> names;
  std::string why_not;
  if (const auto order = order_of_family(source, why_not))
    for (const Parameter& one : order->parameters) names.push_back(one.name);
  return names;
}

std::vector<AdamGroup> groups_for(const Form& form, const Adam& adam,
                                  const Catalog& source) {
  if (adam.states.empty()) return {};
  const bool by_number = !form.sharded;
  if (form.grouping == Grouping::kEach) return adam.groups;
  if (form.grouping == Grouping::kSource && !by_number)
    return listed(adam, source);
  // The script that goes on gives its optimizer what the source's script gave.
  if (form.grouping == Grouping::kSource && adam.ordered) return adam.groups;
  const auto known = group_of(adam);
  const ParameterOrder order = order_of(form, adam, source);
  std::vector<AdamGroup> groups(form.grouping == Grouping::kDecay ? 2
                                : form.grouping == Grouping::kOne
                                    ? 1
                                    : adam.groups.size());
  size_t placed = 0;
  for (const Parameter& one : order.parameters) {
    const auto found = known.find(one.name);
    if (found == known.end()) {  // frozen
      if (form.rank_files) groups[0].params.push_back(one.name);
      continue;
    }
    const size_t g = form.grouping == Grouping::kDecay ? (one.decays ? 0 : 1)
                     : form.grouping == Grouping::kOne ? 0
                                                       : found->second;
    groups[g].params.push_back(one.name);
    ++placed;
  }
  if (placed != known.size()) {
    std::set<std::string_view> left;
    for (const auto& [param, group] : known) left.insert(param);
    for (const Parameter& one : order.parameters) left.erase(one.name);
    throw unfaithful_error({source.path, printable(*left.begin())},
                           "is in the optimizer, but no module of {} has it",
                           order.why);
  }
  for (AdamGroup& group : groups)
    settle_options(form, adam, source, known, group);
  if (form.grouping == Grouping::kSource)
    order_groups(adam, known_order(source), groups);
  if (form.grouping == Grouping::kDecay && groups[1].params.empty())
    groups[1] = without_decay(adam, groups[0]);
  if (form.grouping == Grouping::kDecay && groups[0].params.empty())
    groups[0].options = groups[1].options;
  return groups;
}

}  // namespace ckpt::runs
