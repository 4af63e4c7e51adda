// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/compose.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/format.h"
#include "formats/runs/adam.h"
#include "formats/runs/dtensor_write.h"
#include "formats/runs/forms.h"
#include "formats/runs/nest.h"
#include "formats/runs/pattern.h"
#include "formats/runs/rewrite.h"
#include "formats/runs/states.h"
#include "formats/runs/trainer.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;
using Severity = Problem::Severity;

class Composing {
 public:
  Composing(const Catalog& source, const Layout& layout)
      : source_(source),
        form_(find_form(layout.option(kTrainer), layout.topology.dp,
                        trainer_in(source))),
        ranks_(layout.topology.dp),
        layout_(layout),
        adam_(find_adam(source)),
        states_(find_states(source, adam_)),
        groups_(groups_for(form_, adam_, source)) {
    target_.catalog = formats::catalog_like(source, kRunFormat);
    target_.catalog.topology = {.dp = ranks_};
    target_.catalog.run = Run{layout.option(kTrainer), states_.step};
    target_.beside = form_.home;
  }

  Target build() {
    if (form_.rank_files)
      add_rank_files();
    else if (form_.sharded)
      add_sharded();
    else
      add_plain();
    add_states();
    for (const SourceFile& file : source_.file_list) settle(file);
    say();
    target_.files = std::move(payload_);
    std::ranges::move(rest_, std::back_inserter(target_.files));
    return std::move(target_);
  }

 private:
  std::vector<size_t> model() const {
    std::vector<size_t> all;
    for (size_t t = 0; t < source_.tensors.size(); ++t)
      if (source_.tensors[t].kind == Kind::model) all.push_back(t);
    return all;
  }

  // A container's target becomes part of this one; tensor i of it is `of[i]`.
  void place(Target part, const std::vector<size_t>& of,
             const std::string& folder) {
    const auto base = static_cast<uint32_t>(target_.catalog.files.size());
    const size_t payload = part.catalog.files.size();
    for (size_t i = 0; i < part.catalog.tensors.size(); ++i) {
      Tensor& mine = target_.catalog.tensors[of[i]];
      mine.pieces = std::move(part.catalog.tensors[i].pieces);
      mine.tie = part.catalog.tensors[i].tie;
      for (Piece& piece : mine.pieces) piece.extent.file += base;
    }
    for (File& file : part.catalog.files) {
      file.path = io::join(folder, file.path);
      target_.catalog.files.push_back(std::move(file));
    }
    for (size_t f = 0; f < part.files.size(); ++f) {
      part.files[f].path = io::join(folder, part.files[f].path);
      (f < payload ? payload_ : rest_).push_back(std::move(part.files[f]));
    }
    std::ranges::move(part.problems, std::back_inserter(target_.problems));
    std::ranges::move(part.assumptions,
                      std::back_inserter(target_.assumptions));
  }

  void place_dcp(Nest& nest, const std::string& folder) {
    Layout layout;
    layout.format = "dcp";
    layout.topology.dp = ranks_;
    const Catalog catalog = nest.take();
    place(formats::find_format("dcp").writer->lay_out(catalog, layout),
          nest.of(), folder);
  }

  void add_sharded() {
    Nest nest(source_);
    for (const size_t t : model())
      nest.add({std::string(form_.model_key), source_.tensors[t].name}, t);
    const bool apart = form_.optimizer_at != form_.model_at;
    if (apart) place_dcp(nest, std::string(form_.model_at));
    Nest other(source_);
    Nest& into = apart ? other : nest;
    if (!adam_.states.empty()) add_optimizer(into);
    if (layout_.option(kTrainer) == "torchtitan") add_titan(into);
    if (!apart || !adam_.states.empty())
      place_dcp(into, std::string(form_.optimizer_at));
  }

  void add_optimizer(Nest& nest) {
    const std::string key(form_.optimizer_key);
    for (const auto& [param, states] : adam_.states)
      for (const auto& [state, index] : states) {
        if (form_.grouping == Grouping::kEach)
          nest.add({key, "state." + param + "." + state}, index);
        else
          nest.add({key, "state", param, state}, index);
      }
    Document document;
    const Id list = document.add_container(Type::kList);
    for (const AdamGroup& group : groups_) {
      const auto options = options_of(document, group);
      if (form_.grouping == Grouping::kEach) {
        for (const std::string& param : group.params)
          for (const auto& [name, value] : options)
            nest.add_value({key, "param_groups." + param + "." + name},
                           document, value);
        continue;
      }
      const Id dict = document.add_container(Type::kDict);
      for (const auto& [name, value] : options) document.set(dict, name, value);
      const Id params = document.add_container(Type::kList);
      for (const std::string& param : group.params)
        document.append(params, document.add_string(param));
      document.set(dict, "params", params);
      document.append(list, dict);
    }
    if (form_.grouping != Grouping::kEach)
      nest.add_value({key, "param_groups"}, document, list);
  }

  // What a scheduler begins from is in the groups of an optimizer that has one:
  // DCP asks for every key of the live ones.
  std::vector<std::pair<std::string, Id>> options_of(
      Document& document, const AdamGroup& group) const {
    std::vector<std::pair<std::string, Id>> options;
    for (const auto& [name, value] : group.options)
      options.emplace_back(name, document.import(*adam_.document, value));
    if (option(group, "initial_lr") == kNoId && option(group, "lr") != kNoId)
      options.emplace_back(
          "initial_lr", document.import(*adam_.document, option(group, "lr")));
    return options;
  }

  void add_plain() {
    Nest nest(source_);
    for (const size_t t : model()) nest.add({source_.tensors[t].name}, t);
    Catalog weights = nest.take();
    weights.skeleton.reset();
    Layout layout;
    layout.format = "safetensors";
    layout.max_shard_size = layout_.max_shard_size;
    place(formats::find_format("safetensors").writer->lay_out(weights, layout),
          nest.of(), "");
    if (!adam_.states.empty()) add_numbered();
  }

  // {"state": {0: {"step": …}}, "param_groups": [{…, "params": [0, 1]}]}.
  // `slot`: the node of a tensor of the source.
  template <class Slot>
  Id numbered(Document& document, Slot slot) const {
    const Id states = document.add_container(Type::kDict);
    const Id list = document.add_container(Type::kList);
    int64_t number = 0;
    for (const AdamGroup& group : groups_) {
      const Id params = document.add_container(Type::kList);
      for (const std::string& param : group.params) {
        const Id id = document.add_int(number++);
        document.append(params, id);
        const auto found = adam_.states.find(param);
        if (found == adam_.states.end()) continue;
        const Id dict = document.add_container(Type::kDict);
        for (const auto& [state, index] : found->second)
          document.set(dict, state, slot(index));
        document.set(states, id, dict);
      }
      const Id dict = document.add_container(Type::kDict);
      for (const auto& [name, value] : options_of(document, group))
        document.set(dict, name, value);
      document.set(dict, "params", params);
      document.append(list, dict);
    }
    const Id root = document.add_container(Type::kDict);
    document.set(root, "state", states);
    document.set(root, "param_groups", list);
    return root;
  }

  void add_numbered() {
    Document document;
    std::vector<torch::TensorSlot> slots;
    std::vector<size_t> of;
    const Id root = numbered(document, [&](size_t index) {
      const Tensor& tensor = source_.tensors[index];
      slots.push_back({.dtype = tensor.dtype, .shape = tensor.shape});
      of.push_back(index);
      return torch::add_placeholder(document, slots.size() - 1);
    });
    place_file(document, root, slots, of);
  }

  // verl: the state dicts of each rank. The model's is in module order, which
  // is what numbers its parameters; then buffers and repeats.
  void add_rank_files() {
    std::map<std::string, size_t> left;
    for (const size_t t : model()) left.emplace(source_.tensors[t].name, t);
    std::vector<size_t> of;
    for (const std::string& name : module_order(form_, source_)) {
      const auto found = left.find(name);
      if (found == left.end())
        throw unfaithful_error(
            {source_.path, printable(name)},
            "is trained as one parameter and stored in parts: {} saves what "
            "it trains",
            form_.trainer)
            .with_hint("--trainer hf_trainer with --dp 1 keeps the parts");
      of.push_back(found->second);
      left.erase(found);
    }
    for (const auto& [name, index] : left) of.push_back(index);
    place(
        lay_out_dtensors(source_, of, std::string(form_.model_at), ranks_,
                         [&](Document& document, const std::vector<Id>& nodes) {
                           std::vector<Id> pairs;
                           for (size_t i = 0; i < of.size(); ++i) {
                             pairs.push_back(document.add_string(
                                 source_.tensors[of[i]].name));
                             pairs.push_back(nodes[i]);
                           }
                           return torch::add_ordered_dict(document, pairs);
                         }),
        of, "");
    if (!adam_.states.empty()) add_rank_optimizer();
  }

  void add_rank_optimizer() {
    std::vector<size_t> of;
    std::map<size_t, size_t> position;
    for (const auto& [param, states] : adam_.states)
      for (const auto& [state, index] : states) {
        position.emplace(index, of.size());
        of.push_back(index);
      }
    place(
        lay_out_dtensors(source_, of, std::string(form_.optimizer_at), ranks_,
                         [&](Document& document, const std::vector<Id>& nodes) {
                           return numbered(document, [&](size_t index) {
                             return nodes[position.at(index)];
                           });
                         }),
        of, "");
  }

  // verl opens one of its own rank; without "rng" it keeps its numbers.
  void add_verl_states() {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      Document document;
      const Id value = scheduler(document);
      const Id dict = document.add_container(Type::kDict);
      document.set(dict, "lr_scheduler",
                   value == kNoId ? document.add_none() : value);
      scheduled_ = value != kNoId;
      rest_.push_back(value_file(
          fmt::format("extra_state_world_size_{}_rank_{}.pt", ranks_, rank),
          document, dict));
    }
    rest_.push_back(formats::literal_file(
        "fsdp_config.json",
        fmt::format("{{\n    \"FSDP_version\": 2,\n    \"world_size\": "
                    "{}\n}}",
                    ranks_)));
  }

  void place_file(Document& document, Id root,
                  const std::vector<torch::TensorSlot>& slots,
                  const std::vector<size_t>& of) {
    const std::string path(form_.optimizer_at);
    torch::FilePlan plan =
        torch::plan_file(document, root, slots, torch::archive_root_of(path));
    const auto file = static_cast<uint32_t>(target_.catalog.files.size());
    target_.catalog.files.push_back(
        {.path = path, .size = plan.file.size, .fill = {}});
    for (size_t i = 0; i < of.size(); ++i) {
      Tensor& tensor = target_.catalog.tensors[of[i]];
      tensor.pieces.push_back(
          {.box = Box::whole(tensor.shape),
           .flat = std::nullopt,
           .extent = {
               .file = file, .offset = plan.data_offsets[i], .strides = {}}});
    }
    plan.file.path = path;
    payload_.push_back(std::move(plan.file));
  }

  void add_titan(Nest& nest) const {
    Document document;
    if (states_.step)
      nest.add_value({"train_state", "step"}, document,
                     document.add_int(static_cast<int64_t>(*states_.step)));
    nest.add_value({"train_state", "ntokens_seen"}, document,
                   document.add_int(0));
    if (const auto position = this->position())
      nest.add_value({"lr_scheduler", "last_epoch"}, document,
                     document.add_int(*position));
  }

  // The source's, else that of a scheduler which took each step.
  std::optional<int64_t> position() const {
    if (!states_.scheduler.from.empty()) return states_.scheduler.position;
    if (states_.step) return static_cast<int64_t>(*states_.step);
    return std::nullopt;
  }

  // Its own form where that fits these groups, else one that has a position
  // and leaves the rule to the target's function.
  Id scheduler(Document& document) {
    const Scheduler& its = states_.scheduler;
    const Id bases = states_.document->find(its.whole, "base_lrs");
    const bool own =
        form_.trainer == "accelerate" || form_.trainer == "lightning";
    if (own && its.whole == kNoId) return kNoId;
    if (own && states_.document->is(bases, Type::kList) &&
        states_.document->items(bases).size() == groups_.size())
      return document.import(*states_.document, its.whole);
    const auto position = this->position();
    if (!position || groups_.empty()) return kNoId;
    made_scheduler_ = true;
    return lambda_scheduler(document, adam_, groups_, *position);
  }

  void add_states() {
    Document document;
    if (!form_.scheduler.empty()) {
      const Id value = scheduler(document);
      if (value != kNoId)
        rest_.push_back(
            value_file(std::string(form_.scheduler), document, value));
      scheduled_ = value != kNoId;
    }
    if (form_.trainer == "hf_trainer")
      rest_.push_back(formats::literal_file(
          "trainer_state.json", trainer_state_json(states_.step.value_or(0))));
    if (form_.trainer == "accelerate") add_accelerate_steps();
    if (form_.trainer == "verl") add_verl_states();
    if (form_.trainer == "lightning") {
      const Id value = scheduler(document);
      scheduled_ = value != kNoId;
      rest_.push_back(value_file(
          "meta.pt", document,
          lightning_meta(document, states_.step.value_or(0), value)));
    }
    if (form_.trainer == "torchtitan") scheduled_ = position().has_value();
  }

  // The count inside of an accumulation of gradients, of which nothing is
  // left once a step is saved.
  void add_accelerate_steps() {
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      Document document;
      const Id dict = document.add_container(Type::kDict);
      document.set(dict, "step", document.add_int(0));
      rest_.push_back(value_file(fmt::format("random_states_{}.pkl", rank),
                                 document, dict));
    }
  }

  // The folder of the source that config.json and the tokenizer are in.
  std::optional<std::string> at_home(const std::string& path) const {
    if (path.find('/') == path.npos) return path;
    if (!source_.run) return std::nullopt;
    for (const std::string& home : find_trainer(source_.run->trainer).homes)
      if (path.starts_with(home + "/") &&
          path.find('/', home.size() + 1) == path.npos)
        return path.substr(home.size() + 1);
    return std::nullopt;
  }

  // trainers.json's word for the file; "" for files of others.
  std::string_view part_of(const std::string& path, bool above) const {
    for (const Part& part : find_trainer(source_.run->trainer).parts)
      if (part.above == above &&
          (match(part.file, path) || match(part.file, io::base_name(path))))
        return part.part;
    return {};
  }

  void settle(const SourceFile& file) {
    const std::string where = io::join(source_.file_root, file.path);
    const std::string inside = source_.path + "/";
    const std::string base = io::base_name(file.path);
    if (!where.starts_with(inside)) {
      if (source_.run && part_of(base, true) == "dataloader")
        reset(file, "how far the data were read");
      return;
    }
    const std::string path = where.substr(inside.size());
    if (base == ".metadata" || base.ends_with(".distcp"))
      return decide(file, Fate::kConverted, {});
    if (!source_.run) return;
    const std::string_view part = part_of(path, false);
    const bool about_model = part.empty() || part == "config";
    if (const auto name = at_home(path);
        name && about_model && base != "fsdp_config.json" &&
        (file.part == "config" || file.part == "tokenizer")) {
      TargetFile copy;
      copy.path = io::join(std::string(form_.home), *name);
      copy.size = file.bytes;
      copy.copy_of = where;
      rest_.push_back(std::move(copy));
      return;
    }
    if (scheduled_ &&
        base.substr(0, base.rfind('.')) == states_.scheduler.from) {
      if (part == "rng") reset_.insert("random numbers in " + printable(base));
      return decide(file, Fate::kConverted, {});
    }
    if (!part.empty()) settle_state(file, part);
  }

  void settle_state(const SourceFile& file, std::string_view part) {
    const std::string& from = source_.run->trainer;
    if (part == "rng")
      return reset(file, "random numbers of " + from + "'s ranks");
    if (part == "dataloader") return reset(file, "how far the data were read");
    if (part == "scheduler")
      return reset(file, "a scheduler of groups that the target has not");
    std::string why = from + " alone reads it";
    if (part == "trainer" && states_.step)
      why += form_.trainer == "accelerate"
                 ? fmt::format(
                       "; {} steps are done, which accelerate leaves to "
                       "its script to count",
                       *states_.step)
                 : fmt::format("; the step ({}) is carried", *states_.step);
    decide(file, Fate::kLeftOut, std::move(why));
  }

  void reset(const SourceFile& file, const std::string& what) {
    reset_.insert(printable(io::base_name(file.path)));
    decide(file, Fate::kLeftOut,
           fmt::format("{}: {} starts afresh", what, form_.trainer));
  }

  void decide(const SourceFile& file, Fate fate, std::string why) {
    target_.fates.push_back({file.path, fate, std::move(why)});
  }

  void warn(std::string kind, std::string text) {
    target_.problems.push_back(
        {Severity::kWarning, std::move(kind), {}, {}, std::move(text)});
  }

  void say() {
    const std::string trainer(form_.trainer);
    if (adam_.states.empty())
      warn("no_optimizer",
           fmt::format("there is no optimizer: {} starts it afresh", trainer));
    else
      target_.assumptions.push_back(
          fmt::format("optimizer: Adam's moments of {}, {} for {}",
                      text::counted(adam_.states.size(), "parameter"),
                      form_.grouping == Grouping::kEach
                          ? "options of each parameter"
                          : text::counted(groups_.size(), "group"),
                      trainer));
    if (!states_.step)
      warn("no_step",
           fmt::format("the step is not known: {} begins with 0", trainer));
    else if (states_.counted)
      target_.assumptions.push_back(
          fmt::format("step {}: the optimizer's own count", *states_.step));
    if (form_.trainer == "hf_trainer")
      warn("batch_size",
           fmt::format("trainer_state.json: train_batch_size {}, the Trainer's "
                       "default; set the job's own where it uses "
                       "auto_find_batch_size or a transformers before 5",
                       kTrainerBatch));
    if (form_.trainer == "verl")
      warn("folder",
           fmt::format("verl knows the step by its folder: put it at "
                       "global_step_{}/actor{}",
                       states_.step.value_or(0),
                       ranks_ > 1 ? "; its meshes are as torch 2.12 and 2.13 "
                                    "pickle them, of cuda"
                                  : ""));
    if (form_.trainer == "torchtitan")
      warn("tokens",
           "train_state.ntokens_seen: 0, which no other trainer counts");
    if (made_scheduler_ || (scheduled_ && form_.trainer == "torchtitan"))
      target_.assumptions.push_back(
          fmt::format("scheduler: position {}{}; its rule is that of the "
                      "job which goes on",
                      position().value_or(0),
                      states_.scheduler.from.empty() ? ", by the step" : ""));
    const bool has_file = !form_.scheduler.empty() || form_.rank_files;
    if (!scheduled_ && !adam_.states.empty() && has_file)
      warn("no_scheduler",
           "no scheduler is written: there is none, or it is of other groups");
    std::string names;
    for (const std::string& name : reset_)
      names += (names.empty() ? "" : ", ") + name;
    if (!names.empty())
      warn("reset", fmt::format("{} starts afresh: {}", trainer, names));
  }

  const Catalog& source_;
  const Form& form_;
  const uint32_t ranks_;
  const Layout& layout_;
  const Adam adam_;
  const States states_;
  const std::vector<AdamGroup> groups_;
  Target target_;
  std::vector<TargetFile> payload_, rest_;
  std::set<std::string> reset_;
  bool scheduled_ = false;
  bool made_scheduler_ = false;
};

}  // namespace

Target compose(const Catalog& source, const Layout& layout) {
  return Composing(source, layout).build();
}

}  // namespace ckpt::runs
