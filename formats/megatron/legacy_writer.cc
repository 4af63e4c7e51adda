#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "formats/megatron/common.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/legacy_args.h"
#include "formats/megatron/legacy_file.h"
#include "formats/megatron/legacy_names.h"
#include "formats/megatron/legacy_plan.h"
#include "formats/megatron/legacy_review.h"
#include "formats/megatron/legacy_states_write.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/rules.h"
#include "formats/torch/tree.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;
using State = TpRule::State;

class LegacyWriter : public formats::Writer {
 public:
  std::string_view name() const override { return "megatron_legacy"; }
  Catalog review(Catalog source, const Layout& layout) const override {
    fit_vocabulary(source, facts_of(source), layout.topology.tp);
    return source;
  }
  Target lay_out(const Catalog& source, const Layout& layout) const override;
};

void warn(Target& target, std::string kind, std::string tensor,
          std::string message) {
  target.problems.push_back({Problem::Severity::kWarning, std::move(kind), "",
                             std::move(tensor), std::move(message)});
}

void check_request(const Catalog& source, const Layout& layout) {
  const Topology& grid = layout.topology;
  if (layout.single_file)
    throw usage_error({}, "a legacy Megatron checkpoint is a directory")
        .with_hint("name a directory, or convert to torch for one file");
  if (grid.tp == 0 || grid.pp == 0 || grid.dp == 0 || grid.ep == 0)
    throw usage_error({}, "a topology of no ranks ({})", to_string(grid));
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) return;
  throw unfaithful_error({source.path, {}},
                         "there are no tensors of a model: ranks' files need "
                         "them")
      .with_hint("unshard --optim-only writes the optimizer's state alone");
}

// One rank's files, one after the other.
class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), layout_(layout), facts_(facts_of(source)) {}

  Target build() {
    check_request(source_, layout_);
    begin();
    plan_ = plan_legacy(source_, facts_, layout_, target_);
    check_tensors();
    find_states();
    const LegacyStatesWriter states(source_, facts_, plan_, target_);
    choose_place();
    tell_left_out(states.any());
    for (const LegacyCoordinates& at : legacy_ranks(plan_)) {
      const std::string dir = io::join(step_, legacy_dir(plan_, at));
      if (written_.insert(dir).second) write_rank(states, at, dir);
    }
    add_tracker();
    return std::move(target_);
  }

 private:
  void begin() {
    Catalog& catalog = target_.catalog;
    catalog.format = "megatron_legacy";
    catalog.version = "3.0";
    catalog.dialect = "mcore";
    catalog.family = source_.family;
    catalog.topology = layout_.topology;
    for (const Tensor& tensor : source_.tensors) {
      if (tensor.kind == Kind::other) {
        warn(target_, "tensor_without_place", tensor.name,
             "is left out: ranks' files hold the model and its optimizer");
        continue;
      }
      torch::check_materialisable(tensor, source_);
      if (tensor.kind == Kind::model)
        index_.emplace(tensor.name, catalog.tensors.size());
      catalog.tensors.push_back(tensor);
      catalog.tensors.back().pieces.clear();
      catalog.tensors.back().tie = 0;
    }
  }

  void check_tensors();
  void check_split(Tensor& tensor) const;
  std::string possible_sizes(const Tensor& refused) const;
  void find_states() const;
  void choose_place();
  void tell_left_out(bool optimizer);
  void write_rank(const LegacyStatesWriter& states, const LegacyCoordinates& at,
                  const std::string& dir);
  Id add_chunk(LegacyFile& file, uint32_t v, const LegacyCoordinates& at,
               std::vector<LegacyParam>& params) const;
  Id add_value(LegacyFile& file, const LegacyKey& key,
               const LegacyCoordinates& at) const;
  void add_param(const LegacyKey& key, size_t index, uint32_t v, bool shared,
                 std::vector<LegacyParam>& params) const;
  Id add_args(Document& document, const Object& args,
              const LegacyCoordinates& at) const;
  void add_tracker();

  const Catalog& source_;
  const Layout& layout_;
  const Facts facts_;
  LegacyPlan plan_;
  Target target_;
  std::unordered_map<std::string_view, size_t> index_;  // model tensors
  std::string step_, root_word_;  // "iter_0000005" and "5"
  std::unordered_set<std::string> written_;
};

bool divides(const Shape& shape, const TpRule& rule, uint64_t ranks) {
  return rule.state != State::kSplit || ranks == 1 ||
         (rule.dim < shape.size() && shape[rule.dim] % rule.groups == 0 &&
          shape[rule.dim] / rule.groups % ranks == 0);
}

std::string Builder::possible_sizes(const Tensor& refused) const {
  std::vector<uint64_t> sizes;
  for (uint64_t tp = 1; tp <= 1024 && sizes.size() < 12; ++tp) {
    const auto fits = [&](const Tensor& tensor) {
      return tensor.kind != Kind::model || is_vocabulary(tensor.name) ||
             divides(tensor.shape, tensor.tp, tp);
    };
    if (divides(refused.shape, refused.tp, tp) &&
        std::ranges::all_of(target_.catalog.tensors, fits))
      sizes.push_back(tp);
  }
  return fmt::format("sizes that divide every tensor: {}",
                     fmt::join(sizes, ", "));
}

// Gives each tensor a rule that holds in the target, or refuses.
void Builder::check_split(Tensor& tensor) const {
  const uint64_t ranks =
      plan_.ranks_of(parse_legacy_name(tensor.name).is_expert);
  if (tensor.tp.state == State::kUnknown) {
    // Whole on each of several ranks it was already; else a rule must say.
    if (source_.topology.tp == 1) tensor.tp = tp_rule(tensor.name, facts_);
    if (tensor.tp.state == State::kUnknown && ranks > 1 &&
        source_.topology.tp == 1)
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "how {} tensor-parallel ranks share it is not "
                             "known",
                             ranks)
          .with_hint("--shard-dims RULES.json can say it");
    if (tensor.tp.state == State::kUnknown) tensor.tp = TpRule::replicated();
  }
  if (divides(tensor.shape, tensor.tp, ranks)) return;
  throw unfaithful_error(
      {source_.path, printable(tensor.name)},
      "dimension {} of {} can't be cut into {} equal parts{}", tensor.tp.dim,
      to_string(tensor.shape), ranks,
      tensor.tp.groups > 1 ? " of each half" : "")
      .with_hint(possible_sizes(tensor));
}

void Builder::check_tensors() {
  for (Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model) check_split(tensor);
  const uint64_t tp = layout_.topology.tp;
  if (facts_.num_attention_heads && *facts_.num_attention_heads % tp != 0)
    throw unfaithful_error({source_.path, {}},
                           "{} attention heads for tp={}: Megatron gives "
                           "each rank whole heads",
                           *facts_.num_attention_heads, tp);
  const uint64_t groups = facts_.num_query_groups.value_or(tp);
  if (groups % tp != 0 && tp % groups != 0)
    throw unfaithful_error({source_.path, {}},
                           "{} query groups for tp={}: one must divide the "
                           "other",
                           groups, tp);
}

// State of a parameter that is not written would be lost.
void Builder::find_states() const {
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::optim && !index_.contains(tensor.param))
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "state of {}, which is not written",
                             printable(tensor.param))
          .with_hint("--model-only leaves the optimizer out");
}

// A training root gives a training root, a step's directory a step's content.
void Builder::choose_place() {
  const bool ours = source_.format == "megatron_legacy";
  if (ours && source_.root.empty()) return;
  step_ = ours ? io::base_name(source_.path) : "";
  if (ours && (step_ == "release" || iteration_number(step_))) {
    const auto number = iteration_number(step_);
    root_word_ = number ? std::to_string(*number) : "release";
    return;
  }
  const Object* object = find_object(source_, "iteration");
  std::optional<int64_t> number;
  if (object && object->document)
    number = object->document->as_int(object->node);
  root_word_ = number && *number >= 0 ? std::to_string(*number) : "release";
  step_ = iteration_directory(root_word_).value_or("release");
  target_.assumptions.push_back(fmt::format("written as {}", step_));
}

void Builder::tell_left_out(bool optimizer) {
  bool ranks = false, fp8 = false, groups = false;
  for (const Object& object : source_.objects) {
    const std::string_view name = object.name;
    ranks = ranks || is_rank_key(name.substr(0, name.find('.')));
    fp8 = fp8 || name.starts_with(kStatesObject);
    groups = groups || name == kOptimizerObject;
  }
  if (ranks && !plan_.same_ranks)
    warn(target_, "rng_state", "",
         "random states belong to ranks and are left out for another "
         "topology: load it with --no-load-rng");
  if (fp8 && !plan_.same_ranks)
    warn(target_, "extra_state", "",
         "FP8 scales (_extra_state) belong to ranks and are left out for "
         "another topology: training learns them again");
  if (groups && !optimizer)
    target_.assumptions.push_back(
        "no optimizer: its parameter groups are left out with its tensors");
  for (const Sidecar& sidecar : source_.sidecars)
    warn(target_, "sidecar", "",
         sidecar.name + " is left out: it has no place in this format");
}

void Builder::add_param(const LegacyKey& key, size_t index, uint32_t v,
                        bool shared, std::vector<LegacyParam>& params) const {
  if (is_legacy_buffer(key.name)) return;
  const Tensor& tensor = target_.catalog.tensors[index];
  const bool expert = parse_legacy_name(key.name).is_expert;
  const Shape local =
      part_shape(tensor.shape, tensor.tp, plan_.ranks_of(expert));
  params.push_back({.name = key.name,
                    .chunk = v,
                    .index = index,
                    .dtype = tensor.dtype,
                    .shape = local,
                    .numel = element_count(local).value_or(0),
                    .expert = expert,
                    .shared = shared});
}

Id Builder::add_value(LegacyFile& file, const LegacyKey& key,
                      const LegacyCoordinates& at) const {
  if (key.kind == KeyKind::kValue) {
    const Object* keys = find_object(source_, kModelObject);
    return file.document.import(*keys->document, key.value);
  }
  if (!plan_.same_ranks) return kNoId;
  const Object* states =
      find_object(source_, std::string(kStatesObject) + legacy_dir(plan_, at));
  if (!states || !states->document) return kNoId;
  const Id value = states->document->find(states->node, key.name);
  return value == kNoId ? kNoId
                        : file.document.import(*states->document, value);
}

// A dict in `root`, at the place that a path names.
void set_nested(Document& document, Id root,
                const std::vector<std::string>& path, Id value) {
  Id at = root;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    Id next = document.find(at, path[i]);
    if (next == kNoId) {
      next = document.add_container(Type::kDict);
      document.set(at, path[i], next);
    }
    at = next;
  }
  document.set(at, path.back(), value);
}

Id Builder::add_chunk(LegacyFile& file, uint32_t v, const LegacyCoordinates& at,
                      std::vector<LegacyParam>& params) const {
  Document& document = file.document;
  const auto& keys = plan_.chunk(v, at.pp);
  const bool nested = std::ranges::any_of(
      keys, [](const LegacyKey& key) { return key.path.size() > 1; });
  const Id root = nested ? document.add_container(Type::kDict)
                         : torch::add_ordered_dict(document);
  const uint64_t each = plan_.experts / plan_.topology.ep;
  for (const LegacyKey& key : keys) {
    const LegacyName name = parse_legacy_name(key.name);
    if (name.expert && name.expert->value / each != at.ep) continue;
    Id value = kNoId;
    if (key.kind == KeyKind::kTensor) {
      const size_t index = index_.at(key.tensor);
      const Tensor& tensor = target_.catalog.tensors[index];
      const uint64_t ranks = plan_.ranks_of(name.is_expert);
      value = file.add_part(tensor, index, tensor.tp, at.tp % ranks, ranks);
      const bool shared =
          plan_.tied && (is_word_embedding(key.name) || key.tensor != key.name);
      add_param(key, index, v, shared, params);
    } else {
      value = add_value(file, key, at);
    }
    if (value == kNoId) continue;
    uint64_t layer = 0;
    if (name.layer)
      layer = name.layer->value -
              plan_.first_layer.at(
                  name.stack)[size_t{v} * plan_.topology.pp + at.pp];
    const uint64_t expert = name.expert ? name.expert->value % each : 0;
    set_nested(document, root,
               regroup(with_numbers(key.name, name, layer, expert), key.path),
               value);
  }
  return root;
}

Id Builder::add_args(Document& document, const Object& args,
                     const LegacyCoordinates& at) const {
  const Id copy = document.import(*args.document, args.node);
  uint64_t rows = 0;
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model && is_word_embedding(tensor.name) &&
        !tensor.shape.empty())
      rows = tensor.shape[0];
  update_legacy_args(document, copy, facts_, plan_, at, rows);
  return copy;
}

void Builder::write_rank(const LegacyStatesWriter& states,
                         const LegacyCoordinates& at, const std::string& dir) {
  LegacyFile file;
  Document& document = file.document;
  const Id root = document.add_container(Type::kDict);
  std::vector<LegacyParam> params;
  bool version = false, model = false;
  const auto add_version = [&] {
    if (!version)
      document.set(root, "checkpoint_version", document.add_float(3));
    version = true;
  };
  const auto add_model = [&] {
    add_version();
    for (uint32_t v = 0; v < plan_.vpp && !model; ++v) {
      const Id chunk = add_chunk(file, v, at, params);
      document.set(root, plan_.vpp == 1 ? "model" : fmt::format("model{}", v),
                   chunk);
    }
    model = true;
  };
  const std::string own = "." + legacy_dir(plan_, at);
  for (const Object& object : source_.objects) {
    const std::string key = object.name.substr(0, object.name.find('.'));
    if (object.name == "args") {
      document.set(root, key, add_args(document, object, at));
    } else if (object.name == "checkpoint_version") {
      add_version();
    } else if (object.name == kModelObject) {
      add_model();
    } else if (object.name == kOptimizerObject) {
      add_model();
      if (states.any())
        document.set(root, key, states.add_optimizer(file, params, at));
    } else if (is_rank_key(key)) {
      if (plan_.same_ranks &&
          (object.name == key || object.name.ends_with(own)))
        document.set(root, key, document.import(*object.document, object.node));
    } else if (object.name != kDtypesObject &&
               !object.name.starts_with(kStatesObject)) {
      document.set(root, object.name,
                   document.import(*object.document, object.node));
    }
  }
  add_model();
  file.finish(target_, root, io::join(dir, "model_optim_rng.pt"));
  if (states.any())
    states.write_flat(target_, params, at, io::join(dir, "distrib_optim.pt"));
}

void Builder::add_tracker() {
  if (root_word_.empty()) return;
  TargetFile file;
  file.path = kTracker;
  file.size = root_word_.size();
  file.literals.push_back({0, root_word_});
  target_.catalog.files.push_back({.path = file.path, .size = file.size});
  target_.files.push_back(std::move(file));
}

Target LegacyWriter::lay_out(const Catalog& source,
                             const Layout& layout) const {
  return Builder(source, layout).build();
}

}  // namespace

std::unique_ptr<formats::Writer> make_legacy_writer() {
  return std::make_unique<LegacyWriter>();
}

}  // namespace ckpt::megatron
