// SPDX-License-Identifier: Apache-2.0
// Puts translated state beside a translated model.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/rules/optimizer.h"
#include "convert/rules/trained_experts.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/param_groups.h"
#include "formats/megatron/state/rank_objects.h"
#include "lib/text/format.h"
#include "lib/text/words.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::counted;
using text::printable;

constexpr char kAlone[] = "--model-only converts the model alone";

void warn(Catalog& target, const char* kind, std::string text) {
  target.problems.push_back(
      warning(kind, {target.path, {}}, "{}", std::move(text)));
}

// Options of the target's parameters, from those they are made of.
class Options {
 public:
  Options(const Catalog& target, const Optimizer& optimizer,
          const Parents& parents)
      : target_(target), optimizer_(optimizer), parents_(parents) {
    for (size_t g = 0; g < optimizer.groups.size(); ++g)
      for (const std::string& param : optimizer.groups[g].params)
        group_of_.emplace(param, g);
  }

  // The source's group for a parameter of the target.
  size_t of(const std::string& param) const {
    std::optional<size_t> found;
    const auto parents = parents_.find(param);
    if (parents != parents_.end())
      for (const std::string& parent : parents->second) {
        const auto group = group_of_.find(parent);
        if (group == group_of_.end()) continue;
        check(param, found.value_or(group->second), group->second);
        found = group->second;
      }
    if (!found)
      throw unfaithful_error({target_.path, printable(param)},
                             "is in no group of the optimizer");
    return *found;
  }

  void check(const std::string& param, size_t a, size_t b) const {
    if (a == b) return;
    runs::Adam adam;
    adam.document = optimizer_.document;
    std::string differs;
    if (runs::same_options(adam, optimizer_.groups[a], optimizer_.groups[b],
                           &differs))
      return;
    throw unfaithful_error({target_.path, printable(param)},
                           "the target has one group of options where the "
                           "source has two: {}",
                           differs)
        .with_hint(kAlone);
  }

 private:
  const Catalog& target_;
  const Optimizer& optimizer_;
  const Parents& parents_;
  std::unordered_map<std::string, size_t> group_of_;
};

Tensor as_state(Tensor tensor, const std::string& state,
                const std::string& name) {
  tensor.param = tensor.name;
  tensor.state = state;
  tensor.name = name;
  tensor.kind = Kind::optim;
  tensor.tie = 0;
  tensor.tp = {};
  return tensor;
}

// Moments are written in f32, as in Megatron; 16-bit ones widen exactly.
void check_f32(const Catalog& target, const Tensor& tensor) {
  if (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 ||
      tensor.dtype == DType::f16)
    return;
  throw unfaithful_error({target.path, printable(tensor.name)},
                         "optimizer state in {}: Megatron's is in f32",
                         name(tensor.dtype))
      .with_hint(kAlone);
}

struct Decay {
  std::optional<size_t> decaying, others;  // groups of the source
};

// Megatron's two groups, each with the options of everything in it.
Decay groups_in_megatron(Catalog& target, const Optimizer& optimizer,
                         const Options& options) {
  Decay found;
  for (const Tensor& tensor : optimizer.states.at("exp_avg")) {
    const size_t group = options.of(tensor.name);
    auto& of = megatron::decays(tensor.name, tensor.shape) ? found.decaying
                                                           : found.others;
    options.check(tensor.name, of.value_or(group), group);
    of = group;
  }
  if (!found.others) return found;
  const Document& document = *optimizer.document;
  const Id decay =
      runs::option(optimizer.groups[*found.others], "weight_decay");
  if (document.is(decay, Type::kFloat) && document.real(decay) != 0)
    warn(target, "weight_decay",
         fmt::format("weight_decay is {} for biases and norms, too: Megatron's "
                     "scheduler sets it to 0 for them when training goes on",
                     document.real(decay)));
  return found;
}

// Checks what torch's Adam has and Megatron's does not.
megatron::GroupOptions options_in_megatron(const Optimizer& optimizer,
                                           size_t group) {
  constexpr std::string_view kTorch = "initial_lr swap_lr param_names";
  megatron::GroupOptions kept;
  const Document& document = *optimizer.document;
  Id peak = kNoId;
  for (const auto& [key, value] : optimizer.groups[group].options) {
    if (key == "initial_lr") peak = value;
    if (key == "amsgrad" && document.is(value, Type::kBool) &&
        document.boolean(value))
      throw unfaithful_error({}, "amsgrad: Megatron's Adam has none")
          .with_hint(kAlone);
    if (!text::has_word(kTorch, key)) kept.emplace_back(key, value);
  }
  if (peak != kNoId) kept.emplace_back("max_lr", peak);
  return kept;
}

Object value(std::string name, std::shared_ptr<Document> document, Id node) {
  document->set_root(node);
  return {
      .name = std::move(name), .document = std::move(document), .node = node};
}

Object content_metadata() {
  auto document = std::make_shared<Document>();
  const Id dict = document->add_container(Type::kDict);
  document->set(dict, "singleton_local_shards", document->add_bool(false));
  document->set(dict, "chained_optim_avoid_prefix", document->add_bool(true));
  document->set(dict, "distrib_optim_sharding_type",
                document->add_string(megatron::kFullyReshardable));
  document->set(dict, "distrib_optim_fully_reshardable_mem_efficient",
                document->add_bool(false));
  return value("content_metadata", std::move(document), dict);
}

// Megatron's training does not load an optimizer without a scheduler. The job
// sets its rule; it counts samples, and nothing says how many a step had.
Object scheduler(const Document& from, Id peak, Id decay, int64_t step) {
  auto document = std::make_shared<Document>();
  const Id dict = document->add_container(Type::kDict);
  const auto set = [&](const char* key, Id id) {
    document->set(dict, key, id);
  };
  const auto import = [&](Id id) {
    return id == kNoId ? document->add_float(0) : document->import(from, id);
  };
  set("max_lr", import(peak));
  set("lr_warmup_steps", document->add_int(0));
  set("num_steps", document->add_int(step));
  set("lr_decay_style", document->add_string("constant"));
  set("lr_decay_steps", document->add_int(std::max<int64_t>(step, 1)));
  set("min_lr", document->add_float(0));
  set("start_wd", import(decay));
  set("end_wd", import(decay));
  set("wd_incr_style", document->add_string("constant"));
  set("wd_incr_steps", document->add_int(0));
  return value("opt_param_scheduler", std::move(document), dict);
}

void set_object(Catalog& target, Object object) {
  std::erase_if(target.objects,
                [&](const Object& other) { return other.name == object.name; });
  target.objects.push_back(std::move(object));
}

void add_megatron_objects(Catalog& target, const Optimizer& optimizer,
                          const Decay& groups) {
  const size_t first = groups.decaying ? *groups.decaying : *groups.others;
  const size_t second = groups.others ? *groups.others : first;
  const Document& document = *optimizer.document;
  const runs::AdamGroup& leader = optimizer.groups[first];
  target.objects.push_back(megatron::make_optimizer(
      document, options_in_megatron(optimizer, first),
      options_in_megatron(optimizer, second), optimizer.step));
  set_object(target, content_metadata());
  const auto step = static_cast<int64_t>(
      target.run && target.run->step ? *target.run->step
                                     : static_cast<uint64_t>(optimizer.step));
  auto count = std::make_shared<Document>();
  const Id node = count->add_int(step);
  set_object(target, value("iteration", std::move(count), node));
  Id peak = runs::option(leader, "initial_lr");
  if (peak == kNoId) peak = runs::option(leader, "lr");
  set_object(target, scheduler(document, peak,
                               runs::option(leader, "weight_decay"), step));
  warn(target, "scheduler",
       fmt::format("the schedule of the learning rate is the job's: load with "
                   "--override-opt-param-scheduler. Megatron counts samples, "
                   "and nothing says how many a step had: num_steps is {}, one "
                   "for each",
                   step));
}

// A parameter that is a constant in the source has no moments, and is trained.
void check_new(const Catalog& target, const std::set<std::string_view>& trained,
               const Parents& parents) {
  for (const Tensor& tensor : target.tensors)
    if (const auto found = parents.find(tensor.name);
        !trained.contains(tensor.name) && found != parents.end() &&
        found->second.empty())
      throw unfaithful_error({target.path, printable(tensor.name)},
                             "is a constant in the source's model and trained "
                             "in Megatron's: it has no moments")
          .with_hint(kAlone);
}

}  // namespace

void put_in_megatron(Catalog& target, Optimizer optimizer,
                     const Parents& parents) {
  const Options options(target, optimizer, parents);
  const Decay groups = groups_in_megatron(target, optimizer, options);
  std::set<std::string_view> trained;
  for (const Tensor& tensor : optimizer.states.at("exp_avg"))
    trained.insert(tensor.name);
  check_new(target, trained, parents);
  std::vector<Tensor> made;
  size_t frozen = 0;
  for (const Tensor& tensor : target.tensors) {
    if (tensor.kind != Kind::model) continue;
    if (!trained.contains(tensor.name)) {
      ++frozen;
      continue;
    }
    check_f32(target, tensor);
    made.push_back(as_state(
        tensor, kMainState,
        fmt::format("optimizer.state.{}.{}", kMainState, tensor.name)));
  }
  if (made.size() != trained.size())
    throw bug_error({target.path, {}}, "{} of {} trained parameters",
                    made.size(), trained.size());
  for (auto& [state, tensors] : optimizer.states)
    for (Tensor& tensor : tensors) {
      check_f32(target, tensor);
      std::string name =
          fmt::format("optimizer.state.{}.{}", state, tensor.name);
      made.push_back(as_state(std::move(tensor), state, name));
    }
  for (Tensor& tensor : made) {
    tensor.pinned = DType::f32;
    target.tensors.push_back(std::move(tensor));
  }
  add_megatron_objects(target, optimizer, groups);
  target.assumptions.push_back(fmt::format(
      "optimizer: Adam's moments of {} follow their parameters, main weights "
      "are the model's{}; --use-distributed-optimizer loads them",
      counted(trained.size(), "parameter"),
      frozen ? fmt::format(" ({} without state)", frozen) : ""));
}

namespace {

// Takes the f32 weights that an optimizer updates in place of those in use.
// Returns how many have another dtype.
size_t take_mains(Catalog& target, std::vector<Tensor>& mains) {
  std::unordered_map<std::string_view, Tensor*> models;
  for (Tensor& tensor : target.tensors) models.emplace(tensor.name, &tensor);
  size_t count = 0;
  for (Tensor& main : mains) {
    const auto found = models.find(main.name);
    if (found == models.end()) continue;
    Tensor& model = *found->second;
    const bool same =
        !main.pieces.empty() && !model.pieces.empty() &&
        main.pieces[0].extent.file == model.pieces[0].extent.file &&
        main.pieces[0].extent.offset == model.pieces[0].extent.offset;
    if (same) continue;
    main.requires_grad = model.requires_grad;
    Redundant proof{.tensor = model, .value = {}, .same_as = main};
    proof.why =
        "the optimizer's main weight is the model's, which has to round to it";
    target.redundant.push_back(std::move(proof));
    main.pinned = model.pinned;
    if (main.dtype != model.dtype) ++count;
    model = std::move(main);
  }
  return count;
}

// Adds torch.optim.AdamW's options where Megatron's groups say nothing.
void add_torch_options(Document& document, runs::AdamGroup& group) {
  const auto add = [&](const char* key, Id value) {
    if (runs::option(group, key) == kNoId)
      group.options.emplace_back(key, value);
  };
  for (const char* key :
       {"amsgrad", "maximize", "capturable", "differentiable"})
    add(key, document.add_bool(false));
  for (const char* key : {"foreach", "fused"}) add(key, document.add_none());
  add("decoupled_weight_decay", document.add_bool(true));
}

}  // namespace

void put_in_transformers(Catalog& target, Optimizer optimizer,
                         const Parents& parents) {
  const Options options(target, optimizer, parents);
  Document& document = *optimizer.document;
  std::vector<runs::AdamGroup> groups = optimizer.groups;
  for (runs::AdamGroup& group : groups) {
    group.params.clear();
    add_torch_options(document, group);
  }
  const auto mains = optimizer.states.find(kMainState);
  size_t replaced = 0;
  if (mains != optimizer.states.end()) {
    replaced = take_mains(target, mains->second);
    optimizer.states.erase(mains);
  }
  const View steps = View::filled(target, DType::f32, Shape(), optimizer.step);
  std::vector<Tensor> made;
  std::map<std::string, size_t> group_of;
  for (auto& [state, tensors] : optimizer.states) {
    std::map<std::string, std::string> fused;
    if (state == "exp_avg")
      for (const Tensor& tensor : tensors)
        group_of.emplace(tensor.name, options.of(tensor.name));
    for (Tensor& tensor : fuse_experts(std::move(tensors), fused)) {
      const std::string param = tensor.name;
      made.push_back(as_state(std::move(tensor), state, param + "." + state));
      if (state != "exp_avg") continue;
      for (const auto& [part, whole] : fused)
        if (whole == param) {
          const size_t group = group_of.at(part);
          options.check(param, group_of.emplace(param, group).first->second,
                        group);
        }
      groups[group_of.at(param)].params.push_back(param);
      Tensor count{.name = param};
      steps.into(count);
      made.push_back(as_state(std::move(count), "step", param + ".step"));
    }
  }
  const size_t count = made.size();
  for (Tensor& tensor : made) target.tensors.push_back(std::move(tensor));
  const Id list = document.add_container(Type::kList);
  for (runs::AdamGroup& group : groups) {
    if (group.params.empty()) continue;
    // Megatron's order is not that of transformers' modules: none is claimed.
    std::ranges::sort(group.params);
    const Id dict = document.add_container(Type::kDict);
    for (const auto& [key, value] : group.options)
      document.set(dict, key, value);
    const Id params = document.add_container(Type::kList);
    for (const std::string& param : group.params)
      document.append(params, document.add_string(param));
    document.set(dict, "params", params);
    document.append(list, dict);
  }
  set_object(target, value("optimizer.param_groups", optimizer.document, list));
  target.assumptions.push_back(
      fmt::format("optimizer: {} follow their parameters, {} steps",
                  counted(count, "tensor"), optimizer.step));
  if (replaced)
    target.problems.push_back(
        warning("main_weights", {target.path, {}},
                "{} are the optimizer's main weights, in f32, since "
                "torch's Adam keeps no others; --dtype bf16 rounds them",
                counted(replaced, "weight")));
}

}  // namespace ckpt::families
