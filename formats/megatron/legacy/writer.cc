// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/tree.h"
#include "formats/megatron/canonical/adapter_rows.h"
#include "formats/megatron/canonical/review.h"
#include "formats/megatron/dist/target.h"
#include "formats/megatron/dist/zarr_scan.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/legacy/check.h"
#include "formats/megatron/legacy/from_dist.h"
#include "formats/megatron/legacy/plan.h"
#include "formats/megatron/legacy/rank_write.h"
#include "formats/megatron/legacy/review.h"
#include "formats/megatron/legacy/states_write.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/restack.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using text::printable;

bool has_state(const Catalog& source) {
  return std::ranges::any_of(
      source.tensors, [](const auto& t) { return t.kind == Kind::optim; });
}

class LegacyWriter : public formats::Writer {
 public:
  std::string_view name() const override { return "megatron_legacy"; }
  Catalog review(Catalog source, const Layout& layout) const override {
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
  Target lay_out(const Catalog& source, const Layout& layout) const override;
};

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

Target LegacyWriter::lay_out(const Catalog& source,
                             const Layout& layout) const {
  return Builder(source, layout).build();
}

}  // namespace

std::unique_ptr<formats::Writer> make_legacy_writer() {
  return std::make_unique<LegacyWriter>();
}

}  // namespace ckpt::megatron
