// SPDX-License-Identifier: Apache-2.0
// Writes a distributed checkpoint of the torch_dist backend, for a topology of
// the user's choice. The plainest form, which every core since 0.9 loads:
//
//   [iter_0000007/]metadata.json   four fields
//                  .metadata       neither mcore_data nor plans
//                  __R_0.distcp    of the ranks that hold something
//                  common.pt
//   [latest_checkpointed_iteration.txt]   if a training root was read
#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/tree.h"
#include "formats/dcp/save.h"
#include "formats/megatron/dist/boxes.h"
#include "formats/megatron/dist/objects.h"
#include "formats/megatron/dist/review.h"
#include "formats/megatron/dist/target.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/model/ranks.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/object_archive.h"
#include "formats/megatron/strategy.h"
#include "formats/target.h"

namespace ckpt::megatron {
namespace {

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        topology_(layout.topology),
        directory_(directory_for(source)),
        keys_(keys_of(source.tensors)),
        facts_(facts_with_shapes(source, keys_)),
        split_(split_for(facts_, layout)),
        stages_(source, keys_, facts_, std::max<uint32_t>(1, topology_.pp),
                wanted_of(layout).stage_layers),
        ranks_(topology_, split_.etp, has_experts(keys_)) {
    if (layout.single_file)
      throw usage_error({}, "a distributed checkpoint is a directory");
    if (layout.max_shard_size != 0)
      throw usage_error({}, "--max-shard-size does not go with {}",
                        "megatron_torch_dist")
          .with_hint("--dp N sets how many files there are");
  }

  Target build() {
    start();
    dcp::Save save(source_, target_,
                   {.planner_data = false,
                    .storage_meta = false,
                    .directory = directory_});
    add_objects(save);
    add_tensors(save);
    save.add_file(kConfigFile, config_text("torch_dist"));
    save.finish(ranks_.count(), true);
    add_common(source_, facts_, layout_, directory_, target_);
    add_sidecars(source_, layout_, directory_, target_);
    add_tracker(directory_, target_);
    return std::move(target_);
  }

 private:
  static bool has_experts(const KeyList& keys) {
    return std::ranges::any_of(
        keys, [](const Key& key) { return key.rooted && key.is_expert(); });
  }
  void start() {
    Catalog& catalog = target_.catalog;
    catalog.format = "megatron_torch_dist";
    catalog.version = "1";
    catalog.family = source_.family;
    catalog.dialect = "mcore";
    catalog.topology = topology_;
    for (size_t t = 0; t < keys_.size(); ++t) {
      const Tensor& tensor = source_.tensors[t];
      torch::check_materialisable(tensor, source_);
      check_split(source_, tensor, keys_[t], split_);
      catalog.tensors.push_back(formats::without_pieces(tensor));
      catalog.tensors.back().tie = 0;
    }
    if (!stages_.uneven().empty())
      target_.assumptions.push_back(fmt::format(
          "{}: stages get whole layers, some one more", stages_.uneven()));
  }

  void add_objects(dcp::Save& save) {
    const bool as_it_is = form_of(source_.format) == Form::kListOfOne;
    for (const Object* object : kept_objects(source_, topology_, target_)) {
      if (object->bytes == 0 || as_it_is)
        save.add_object(object->name, *object, rank_of(*object), !as_it_is);
      else
        save.add_archive(
            object->name,
            object_archive(source_, *object, Form::kListOfOne, "archive"),
            rank_of(*object));
      target_.catalog.objects.push_back(*object);
    }
    const auto names = missing_extra_states(source_, keys_, facts_, target_);
    if (names.empty()) return;
    pickle::Document document;
    const pickle::Id none =
        document.add_container(pickle::Type::kList, {document.add_none()});
    for (const std::string& name : names)
      save.add_value(name, document, none, stage_rank(stage_of_object(name)));
  }

  uint32_t stage_rank(uint32_t stage) const {
    return static_cast<uint32_t>(uint64_t{topology_.tp} * topology_.dp * stage);
  }
  // By the object's layer.
  uint32_t stage_of_object(std::string_view name) const {
    const auto object = parse_object_key(name);
    if (!object) return 0;
    const Key key = parse_key(object->key);
    const uint64_t layer =
        key.layer_axis && !object->offset.empty() ? object->offset[0] : 0;
    return key.rooted ? stages_.of(key, key.layer.value_or(layer)) : 0;
  }
  uint32_t rank_of(const Object& object) const {
    return stage_rank(stage_of_object(object.name));
  }

  void add_tensors(dcp::Save& save) {
    size_t own = 0;
    for (uint32_t t = 0; t < source_.tensors.size(); ++t) {
      const Tensor& tensor = source_.tensors[t];
      const Key& key = keys_[t];
      own += !has_rule(tensor, key) && tensor.pieces.size() > 1;
      each_box(tensor, key, split_, [&](const DistBox& box) {
        save.add_piece(t, box.box, rank_of(tensor, key, box));
      });
    }
    if (own != 0)
      target_.assumptions.push_back(fmt::format(
          "{} tensors of modules that are not known keep the boxes that the "
          "source has",
          own));
  }

  uint32_t rank_of(const Tensor& tensor, const Key& key, const DistBox& box) {
    const uint64_t bytes = byte_size(tensor.dtype, box.box.shape).value_or(0);
    const uint32_t stage = key.rooted ? stages_.of(key, box.layer) : 0;
    if (!key.rooted || !key.is_expert())
      return ranks_.dense(box.tp, stage, bytes);
    const size_t d = key.layer_axis ? 1 : 0;
    const uint64_t experts = key.expert_axis && d < tensor.shape.size()
                                 ? tensor.shape[d]
                                 : facts_.num_experts.value_or(box.expert + 1);
    const uint64_t ep =
        std::min(box.expert * split_.ep / experts, uint64_t{split_.ep - 1});
    return ranks_.expert(box.tp, ep, stage, bytes);
  }

  const Catalog& source_;
  const Layout& layout_;
  const Topology topology_;
  const std::string directory_;
  const KeyList keys_;  // of the source's tensors
  const Facts facts_;
  const DistSplit split_;
  const Stages stages_;
  Ranks ranks_;
  Target target_;
};

}  // namespace

std::unique_ptr<formats::Writer> make_dist_writer() {
  // A distributed checkpoint's objects are carried unopened; others were opened
  // by the review.
  return formats::writer_of("megatron_torch_dist", review_for_dist,
                            formats::build_with<Builder>, false);
}

}  // namespace ckpt::megatron
