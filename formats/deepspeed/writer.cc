// SPDX-License-Identifier: Apache-2.0
// Writes rank files (ranks.h), or a universal checkpoint (universal.h) like
// DeepSpeed's own conversion, which DeepSpeed loads at any number of ranks. But
// not at any stage: the loaders of ZeRO 1 and 2 take dicts, ZeRO 3's takes flat
// tensors, and the model states are those of the source's stage:
//
//   latest_universal
//   TAG_universal/zero/NAME/*.pt, zero/optimizer_state.pt
//                /*_model_states.pt     copies of the source's
#include <algorithm>
#include <set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/deepspeed/locate.h"
#include "formats/deepspeed/ranks.h"
#include "formats/deepspeed/rules.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kOptimizer = "optimizer_state_dict.";
constexpr std::string_view kBase = "base_optimizer_state.";
constexpr std::string_view kThird = "optimizer_state_dict.";

// Only tensors from an optimizer need a gradient.
bool is_master(const Tensor& tensor) {
  return tensor.kind == Kind::model && tensor.requires_grad;
}

std::optional<int64_t> stage_of(const Document& document, Id node) {
  if (!document.is(node, Type::kCall)) return document.as_int(node);
  const auto args = document.items(document.call(node).args);
  return args.size() == 1 ? document.as_int(args[0]) : std::nullopt;
}

bool is_third(const Catalog& source) {
  for (const Object& object : source.objects)
    if (object.name == "optimizer_state_dict.zero_stage")
      return stage_of(*object.document, object.node) == 3;
  return false;
}

// Keeps each parameter once, with its states; of ZeRO 3, which has one step for
// all, the first step.
void keep_masters(Catalog& source) {
  std::set<std::string> names;
  std::set<uint32_t> ties;
  for (const Tensor& tensor : source.tensors)
    if (is_master(tensor) &&
        (tensor.tie == 0 || ties.insert(tensor.tie).second))
      names.insert(tensor.name);
  const bool third = is_third(source);
  bool stepped = false;
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    if (is_master(tensor)) return !names.contains(tensor.name);
    if (tensor.kind != Kind::optim || !names.contains(tensor.param))
      return true;
    if (!third || tensor.state != "step") return false;
    return std::exchange(stepped, true);
  });
}

class UniversalWriter {
 public:
  UniversalWriter(const Catalog& source, const Layout& layout)
      : source_(source), layout_(layout) {}

  Target build() {
    check_source();
    read_objects();
    std::string tag = io::base_name(source_.path);
    if (!tag.ends_with("_universal")) tag += "_universal";
    folder_ = tag + "/";
    target_.catalog.format = "deepspeed";
    target_.catalog.family = source_.family;
    add_tensors();
    add_common();
    add_copies();
    add_bytes("latest_universal", tag);
    return std::move(target_);
  }

 private:
  void check_source() const {
    if (layout_.single_file)
      throw usage_error({}, "a universal checkpoint is a directory");
    if (source_.format != "deepspeed")
      throw unfaithful_error(
          {source_.path, {}},
          "is of format {}: the model states that belong to a universal "
          "checkpoint come from DeepSpeed alone",
          source_.format)
          .with_hint(
              "write safetensors or torch, and load these as the "
              "model's weights");
    if (layout_.topology != Topology{})
      throw unfaithful_error({source_.path, {}},
                             "partitions are written for other data-parallel "
                             "ranks alone (--dp N), not for {}",
                             to_string(layout_.topology))
          .with_hint(
              "ckpt convert SRC DST --to deepspeed, without sizes: a universal "
              "checkpoint, which DeepSpeed loads at any topology");
  }

  void read_objects() {
    third_ = is_third(source_);
    std::set<std::string_view> masters;
    for (const Tensor& tensor : source_.tensors)
      if (is_master(tensor)) masters.insert(tensor.name);
    if (masters.empty())
      throw unfaithful_error({source_.path, {}},
                             "has no fp32 master weights of ZeRO");
    check_states(masters);
    for (const Object& object : source_.objects) {
      const Document& document = *object.document;
      if (object.name == "universal_checkpoint_info") {
        rules_ = Rules::read(document, object.node, source_.path);
        check_sub_params(document, object.node);
      } else if (object.name == "param_shapes") {
        check_masters(document, object.node, masters);
      } else if (object.name.starts_with(kOptimizer) &&
                 object.name.ends_with(".step") &&
                 object.name.find(".state.") != std::string::npos) {
        throw unfaithful_error({source_.path, printable(object.name)},
                               "is a number; universal checkpoints have it "
                               "as a tensor");
      }
    }
  }

  // DeepSpeed's loader wants optimizer state for every parameter.
  void check_states(const std::set<std::string_view>& masters) const {
    std::set<std::string_view> with;
    for (const Tensor& tensor : source_.tensors)
      if (tensor.kind == Kind::optim && tensor.state != "step")
        with.insert(tensor.param);
    for (const std::string_view name : masters)
      if (!with.contains(name))
        throw unfaithful_error({source_.path, printable(name)},
                               "has no optimizer state, which a universal "
                               "checkpoint needs");
  }

  // Their own conversion stores a description of the parts that only
  // DeepSpeed's class can hold.
  void check_sub_params(const Document& document, Id info) const {
    const Id subs = document.find(info, "parameter_with_sub_params");
    if ((document.is(subs, Type::kList) || document.is(subs, Type::kTuple)) &&
        !document.items(subs).empty())
      throw unfaithful_error({source_.path, {}},
                             "has parameters of several sub-parameters "
                             "(parameter_with_sub_params)")
          .with_hint("use DeepSpeed's ds_to_universal for this one");
  }

  // A universal checkpoint that lacks a parameter would not load.
  void check_masters(const Document& document, Id node,
                     const std::set<std::string_view>& masters) const {
    std::vector<Id> groups{node};
    if (document.is(node, Type::kList) || document.is(node, Type::kTuple)) {
      const auto items = document.items(node);
      groups.assign(items.begin(), items.end());
    }
    for (const Id group : groups) {
      const auto pairs = document.as_pairs(group);
      for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
        if (document.is((*pairs)[i], Type::kString) &&
            !masters.contains(document.text((*pairs)[i])))
          throw unfaithful_error(
              {source_.path, printable(document.text((*pairs)[i]))},
              "is left out or renamed; the model states, which are copied, "
              "have it");
    }
  }

  void add_tensors() {
    for (const Tensor& tensor : source_.tensors) {
      torch::check_materialisable(tensor, source_);
      if (is_master(tensor))
        add_state(tensor, tensor.name, "fp32");
      else if (third_ && tensor.state == "step")
        steps_.push_back(&tensor);
      else
        add_state(tensor, tensor.param, tensor.state);
    }
  }

  void add_state(const Tensor& tensor, const std::string& param,
                 const std::string& state) {
    for (const std::string_view part : {param, state})
      if (part.empty() || part.starts_with('/') ||
          part.find("..") != std::string_view::npos ||
          part.find('\0') != std::string_view::npos)
        throw unsafe_error({source_.path, printable(tensor.name)},
                           "can't be the name of a file");
    const bool scalar = tensor.shape.empty() && state == "step";
    Document document;
    Id root = torch::add_placeholder(document, 0);
    torch::TensorSlot slot{.dtype = tensor.dtype, .shape = tensor.shape};
    if (third_ && !scalar) {
      slot.shape = {element_count(tensor.shape).value()};
    } else if (!scalar) {
      const Id dict = document.add_container(Type::kDict);
      add_rule(document, dict, param, tensor);
      document.set(dict, "param", root);
      root = dict;
    }
    place(document, root, slot, tensor,
          fmt::format("{}zero/{}/{}.pt", folder_, param, state));
  }

  // Says how DeepSpeed cuts it for tensor-parallel ranks.
  void add_rule(Document& document, Id dict, const std::string& param,
                const Tensor& tensor) const {
    TpRule rule = tensor.tp;
    // Without rules everything is joined on dimension 0.
    if (rule.state == TpRule::State::kUnknown) rule = TpRule::split(0);
    if (rule.state == TpRule::State::kSplit) {
      document.set(dict, "cat_dim", document.add_int(rule.dim));
      if (rule.groups > 1)
        document.set(dict, "param_n_sub_params", document.add_int(rule.groups));
    }
    if (rules_.is_vocabulary(param))
      document.set(dict, "vocab_tensor", document.add_bool(true));
  }

  void place(const Document& document, Id root, const torch::TensorSlot& slot,
             const Tensor& tensor, const std::string& path) {
    torch::FilePlan plan =
        torch::plan_file(document, root, std::span(&slot, 1),
                         torch::archive_root_of(io::base_name(path)));
    Tensor out = tensor;
    out.tie = 0;
    out.pieces = {{.box = Box::whole(tensor.shape),
                   .flat = std::nullopt,
                   .extent = {.offset = plan.data_offsets[0],
                              .strides = {},
                              .file = static_cast<uint32_t>(
                                  target_.catalog.files.size())}}};
    target_.catalog.files.push_back({.path = path, .size = plan.file.size});
    target_.catalog.tensors.push_back(std::move(out));
    plan.file.path = path;
    target_.files.push_back(std::move(plan.file));
  }

  // Adds what the optimizer has besides the parameters' states. ZeRO 3 takes
  // the step from its first sub-group.
  void add_common() {
    Document document;
    const Id root = document.add_container(Type::kDict);
    Id groups = pickle::kNoId;
    for (const Object& object : source_.objects) {
      if (!object.name.starts_with(kOptimizer)) continue;
      std::string key = object.name.substr(kOptimizer.size());
      const Id value = document.import(*object.document, object.node);
      target_.catalog.objects.push_back(object);
      for (const std::string_view prefix : {kBase, kThird})
        if (key.starts_with(prefix)) key.erase(0, prefix.size());
      if (key == "param_groups")
        groups = value;
      else if (key.find('.') == std::string::npos)
        document.set(root, key, value);
    }
    if (groups == pickle::kNoId)
      throw unfaithful_error({source_.path, {}},
                             "has no param_groups of the optimizer");
    const std::string path = folder_ + "zero/optimizer_state.pt";
    if (!third_) {
      document.set(root, "param_groups", groups);
      finish_common(document, root, path);
      return;
    }
    const Id inner = document.add_container(Type::kDict);
    const Id states = document.add_container(Type::kDict);
    const Id state = document.add_container(Type::kDict);
    document.set(inner, "state", states);
    document.set(inner, "param_groups", groups);
    document.set(root, "optimizer_state_dict", inner);
    document.set(root, "param_groups", groups);
    if (steps_.empty()) {
      finish_common(document, root, path);
      return;
    }
    document.set(states, document.add_int(0), state);
    document.set(state, "step", torch::add_placeholder(document, 0));
    const Tensor& step = *steps_.front();
    place(document, root, {.dtype = step.dtype, .shape = step.shape}, step,
          path);
    target_.assumptions.push_back(
        "ZeRO 3 has one step for all parameters: that of " +
        printable(step.param));
  }

  void finish_common(const Document& document, Id root,
                     const std::string& path) {
    torch::FilePlan plan =
        torch::plan_file(document, root, {}, "optimizer_state");
    plan.file.path = path;
    loose_.push_back(std::move(plan.file));
  }

  void add_copies() {
    target_.files.insert(target_.files.end(),
                         std::make_move_iterator(loose_.begin()),
                         std::make_move_iterator(loose_.end()));
    for (const FileName& name : list_files(source_.path)) {
      if (name.kind == FileKind::kExpert)
        throw unfaithful_error({source_.path, {}},
                               "has experts in files of their own, and "
                               "DeepSpeed loads no universal checkpoint of "
                               "such a model");
      if (name.kind != FileKind::kModel && name.kind != FileKind::kLayer)
        continue;
      TargetFile file;
      file.path = folder_ + name.name;
      file.copy_of = io::join(source_.path, name.name);
      file.size = io::file_size(file.copy_of).value_or(0);
      target_.files.push_back(std::move(file));
    }
    target_.assumptions.push_back(
        "the model states are copied as they are: names, shapes, frozen "
        "parameters, buffers and all other values");
  }

  void add_bytes(const std::string& path, const std::string& bytes) {
    target_.files.push_back(formats::literal_file(path, bytes));
  }

  const Catalog& source_;
  const Layout& layout_;
  Rules rules_;
  bool third_ = false;
  std::string folder_;
  Target target_;
  std::vector<TargetFile> loose_;  // without payload
  std::vector<const Tensor*> steps_;
};

// True if rank files are requested.
bool wants_ranks(const Catalog& source, const Layout& layout) {
  const Topology only{.dp = layout.topology.dp};
  return layout.topology.dp > 1 && layout.topology == only &&
         source.format == "deepspeed" && !layout.single_file;
}

// Part of the parameters, or other names, would not load.
void check_whole(const Catalog& source) {
  const Catalog whole = make_reader()->read_catalog(source.path, {});
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
  };
  const auto [mine, its] =
      std::ranges::mismatch(source.tensors, whole.tensors, same);
  if (mine == source.tensors.end() && its == whole.tensors.end()) return;
  throw unfaithful_error(
      {source.path,
       printable((its == whole.tensors.end() ? *mine : *its).name)},
      "partitions of ranks are written whole and by their own names")
      .with_hint(
          "leave --keys, --rename and --dtype out, or write another format "
          "(--to)");
}

class DeepSpeedWriter final : public formats::Writer {
 public:
  std::string_view name() const override { return "deepspeed"; }
  // The model states, which are copied, hold everything except the parameters.
  Catalog review(Catalog source, const Layout& layout) const override {
    if (source.format == name() && !layout.single_file &&
        !wants_ranks(source, layout))
      keep_masters(source);
    return source;
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override {
    if (!wants_ranks(source, layout)) {
      Target target = UniversalWriter(source, layout).build();
      if (source.format == name() && !layout.single_file)
        target.problems.push_back(remark(
            "universal", {source.path, {}},
            "written as a universal checkpoint, for any number of ranks: load "
            "it with load_universal_checkpoint; --dp N with 2 and more writes "
            "ranks' own files"));
      return target;
    }
    check_whole(source);
    Target target = lay_out_ranks(source, layout.topology.dp);
    target.files.push_back(
        formats::literal_file("latest", io::base_name(source.path)));
    return target;
  }
};

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return std::make_unique<DeepSpeedWriter>();
}

}  // namespace ckpt::deepspeed
