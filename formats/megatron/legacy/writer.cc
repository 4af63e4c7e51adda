// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tree.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/review.h"
#include "formats/megatron/dist/target.h"
#include "formats/megatron/dist/zarr_scan.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/legacy/from_dist.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/plan.h"
#include "formats/megatron/legacy/rank_write.h"
#include "formats/megatron/legacy/review.h"
#include "formats/megatron/legacy/states_write.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/parts.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

using text::printable;

// Checks that the ranks of a target can share each tensor.

bool divides(const Shape& shape, const TpRule& rule, uint64_t ranks) {
  return rule.state != State::kSplit || ranks == 1 ||
         (rule.dim < shape.size() && shape[rule.dim] % rule.groups == 0 &&
          shape[rule.dim] / rule.groups % ranks == 0);
}

class Checker {
 public:
  Checker(const Catalog& source, const Facts& facts, const LegacyPlan& plan,
          Target& target)
      : source_(source), facts_(facts), plan_(plan), target_(target) {}

  void check_tensors();
  void check_states() const;

 private:
  void check_split(Tensor& tensor) const;
  void check_parts(const Tensor& tensor, uint64_t ranks) const;
  bool shares_heads(uint64_t tp) const;
  bool shares_groups(uint64_t tp) const;
  std::optional<std::string> unshared_mixers(uint64_t tp) const;
  std::string possible_sizes(const Tensor* refused) const;

  const Catalog& source_;
  const Facts& facts_;
  const LegacyPlan& plan_;
  Target& target_;
};

// Megatron gives each rank whole heads.
bool Checker::shares_heads(uint64_t tp) const {
  return facts_.num_attention_heads.value_or(tp) % tp == 0;
}

bool Checker::shares_groups(uint64_t tp) const {
  const uint64_t groups = facts_.num_query_groups.value_or(tp);
  return groups % tp == 0 || tp % groups == 0;
}

std::optional<std::string> Checker::unshared_mixers(uint64_t tp) const {
  return unshared(target_.catalog.tensors,
                  {facts_.mamba_groups, facts_.delta_keys}, tp);
}

// `refused` may be null, or an unpadded vocabulary.
std::string Checker::possible_sizes(const Tensor* refused) const {
  std::vector<uint64_t> sizes;
  for (uint64_t tp = 1; tp <= 1024 && sizes.size() < 12; ++tp) {
    const auto fits = [&](const Tensor& tensor) {
      return tensor.kind != Kind::model || is_vocabulary(tensor.name) ||
             divides(tensor.shape, tensor.tp, tp);
    };
    if (shares_heads(tp) && shares_groups(tp) && !unshared_mixers(tp) &&
        (!refused || divides(refused->shape, refused->tp, tp)) &&
        std::ranges::all_of(target_.catalog.tensors, fits))
      sizes.push_back(tp);
  }
  return fmt::format("sizes that divide every tensor and the heads: {}",
                     fmt::join(sizes, ", "));
}

// Checks that each rank has an equal share of each part.
void Checker::check_parts(const Tensor& tensor, uint64_t ranks) const {
  const auto sizes = plan_.mixers.need(source_.path, tensor.name);
  uint64_t sum = 0;
  for (const uint64_t size : sizes) sum += size;
  if (std::ranges::all_of(sizes,
                          [&](uint64_t size) { return size % ranks == 0; }) &&
      !tensor.shape.empty() && tensor.shape[0] == sum)
    return;
  throw unfaithful_error({source_.path, printable(tensor.name)},
                         "its parts ({}) have {} rows, which {} ranks can't "
                         "share equally",
                         fmt::join(parts_of(tensor.name), ", "),
                         fmt::join(sizes, ", "), ranks);
}

// Gives the tensor a rule that holds in the target, or refuses it.
void Checker::check_split(Tensor& tensor) const {
  const uint64_t ranks =
      plan_.ranks_of(parse_legacy_name(tensor.name).is_expert);
  if (tensor.tp.state == State::kUnknown) {
    // If there were several ranks, each already had it whole; else a rule must
    // say.
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
  if (tensor.tp.state == State::kSplit && ranks > 1 &&
      !parts_of(tensor.name).empty())
    check_parts(tensor, ranks);
  if (divides(tensor.shape, tensor.tp, ranks)) return;
  throw unfaithful_error(
      {source_.path, printable(tensor.name)},
      "dimension {} of {} can't be cut into {} equal parts{}", tensor.tp.dim,
      to_string(tensor.shape), ranks,
      tensor.tp.groups > 1 ? " of each half" : "")
      .with_hint(possible_sizes(&tensor));
}

void Checker::check_tensors() {
  for (Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model) check_split(tensor);
  const uint64_t tp = plan_.topology.tp;
  if (!shares_heads(tp))
    throw unfaithful_error({source_.path, {}},
                           "{} attention heads for tp={}: Megatron gives "
                           "each rank whole heads",
                           *facts_.num_attention_heads, tp)
        .with_hint(possible_sizes(nullptr));
  if (!shares_groups(tp))
    throw unfaithful_error({source_.path, {}},
                           "{} query groups for tp={}: one must divide the "
                           "other",
                           *facts_.num_query_groups, tp)
        .with_hint(possible_sizes(nullptr) +
                   "; --to megatron_torch_dist takes any that divides the "
                   "rows");
  if (const auto said = unshared_mixers(tp))
    throw unfaithful_error({source_.path, {}},
                           "{}: Megatron gives each rank whole ones", *said)
        .with_hint(possible_sizes(nullptr));
}

// The state of an unwritten parameter would be lost.
void Checker::check_states() const {
  std::unordered_set<std::string_view> models;
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::model) models.insert(tensor.name);
  for (const Tensor& tensor : target_.catalog.tensors)
    if (tensor.kind == Kind::optim && !models.contains(tensor.param))
      throw unfaithful_error({source_.path, printable(tensor.name)},
                             "state of {}, which is not written",
                             printable(tensor.param))
          .with_hint("--model-only leaves the optimizer out");
}

// Gives the target's model tensors rules that hold there. Throws
// unfaithful_error for sizes that don't divide, tensors that no rule explains,
// and state of unwritten parameters.
void check_shares(const Catalog& source, const Facts& facts,
                  const LegacyPlan& plan, Target& target) {
  Checker checker(source, facts, plan, target);
  checker.check_tensors();
  checker.check_states();
}

bool has_state(const Catalog& source) {
  return std::ranges::any_of(
      source.tensors, [](const auto& t) { return t.kind == Kind::optim; });
}

Catalog review_legacy(Catalog source, const Layout& layout) {
  refuse_adapters(source);
  refuse_kinds(source);
  if (speaks_canonical(source)) {
    const Facts facts = settle_canonical(source, layout);
    if (has_state(source)) {
      stack_modules(source, facts);
      take_optimizer(source, facts_of(source));
    }
    check_names(source);
    return source;
  }
  Facts facts = facts_of(source);
  if (const std::string asked = wanted_of(layout).transformer_impl;
      !asked.empty())
    facts.local_spec = asked == "local";
  const bool keys = source.format == "megatron_torch_dist" ||
                    source.format == "megatron_zarr";
  const bool state = has_state(source);
  if (!keys) refuse_spelling(source, layout);
  if (keys && state) {
    if (source.format != "megatron_torch_dist") load_objects(source);
    complete_object_names(source.objects);
    take_optimizer(source, facts);
  } else if (keys) {
    name_modules(source, facts);
  }
  check_names(source);
  if (!ask_vocabulary(source, facts, layout, false))
    fit_vocabulary(source, facts, layout.topology.tp);
  return source;
}

void warn(Target& target, std::string kind, std::string tensor,
          std::string message) {
  target.problems.push_back(warning(std::move(kind), {{}, std::move(tensor)},
                                    "{}", std::move(message)));
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

// Writes the ranks' files, one rank after the other.
class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        facts_(source.format == "megatron_legacy" ? facts_of(source)
                                                  : facts_with_shapes(source)) {
  }

  Target build() {
    check_request(source_, layout_);
    begin();
    plan_ = plan_legacy(source_, facts_, layout_, target_);
    plan_.mixers = MixerParts(target_.catalog.tensors);
    check_args();
    check_shares(source_, facts_, plan_, target_);
    const LegacyStatesWriter states(source_, facts_, plan_, target_);
    choose_place();
    tell_left_out(states.any());
    LegacyRankWriter ranks(source_, facts_, plan_, target_);
    std::unordered_set<std::string> written;
    for (const LegacyCoordinates& at : legacy_ranks(plan_)) {
      const std::string directory = io::join(step_, legacy_dir(plan_, at));
      if (written.insert(directory).second) ranks.write(states, at, directory);
    }
    add_tracker();
    formats::copy_sidecars(source_, true, {}, target_);
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
      catalog.tensors.push_back(formats::without_pieces(tensor));
      catalog.tensors.back().tie = 0;
    }
  }

  void check_args() const;
  void choose_place();
  void tell_left_out(bool optimizer);
  void add_tracker();

  const Catalog& source_;
  const Layout& layout_;
  const Facts facts_;
  LegacyPlan plan_;
  Target target_;
  std::string step_, root_word_;  // "iter_0000005" and "5"
};

// Directory names don't say how many ranks share an expert.
void Builder::check_args() const {
  if (facts_.any || plan_.experts == 0 || plan_.etp == layout_.topology.tp)
    return;
  throw unfaithful_error({source_.path, {}},
                         "expert_tensor_parallel_size {} (tp={}) has to be in "
                         "the args, and the source has none",
                         plan_.etp, layout_.topology.tp)
      .with_hint(
          "a model with its config.json (--to megatron_legacy from its "
          "directory) brings args");
}

// A training root gives a training root; a step's directory gives a step's
// content.
void Builder::choose_place() {
  const bool ours = source_.format == "megatron_legacy";
  if (ours && source_.root.empty()) return;
  step_ = ours ? io::base_name(source_.path) : "";
  if (ours && (step_ == "release" || iteration_number(step_))) {
    const auto number = iteration_number(step_);
    root_word_ = number ? std::to_string(*number) : "release";
    return;
  }
  if (const auto directory = canonical_directory(source_)) {
    step_ = *directory;
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
    if (name == kOptimizerObject || name == kDtypesObject) {
      groups = groups || name == kOptimizerObject;
    } else if (!carries_object(source_, object)) {
      warn(target_, "object_without_place", "",
           printable(object.name) +
               " is left out: ranks' files have no place "
               "for it");
      continue;
    }
    ranks = ranks || is_rank_key(name.substr(0, name.find('.')));
    fp8 = fp8 || name.starts_with(kStatesObject);
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

Target lay_out_legacy(const Catalog& source, const Layout& layout) {
  return Builder(source, layout).build();
}

}  // namespace

std::unique_ptr<formats::Writer> make_legacy_writer() {
  return formats::writer_of("megatron_legacy", review_legacy, lay_out_legacy);
}

}  // namespace ckpt::megatron
