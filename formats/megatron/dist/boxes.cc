// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/boxes.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/model/vocab.h"
#include "lib/cuts.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

// More boxes of one tensor than any job writes.
constexpr uint64_t kMostBoxes = uint64_t{1} << 24;

// The number of ranks that share it.
uint64_t parts_of(const Key& key, const DistSplit& split) {
  return key.is_expert() ? split.etp : split.tp;
}

bool divides(const Tensor& tensor, uint64_t parts) {
  const TpRule& rule = tensor.tp;
  if (rule.state != State::kSplit || parts == 1) return true;
  if (rule.dim >= tensor.shape.size()) return false;
  const uint64_t extent = tensor.shape[rule.dim];
  return extent % rule.groups == 0 && extent / rule.groups % parts == 0;
}

uint64_t extent(const Tensor& tensor, bool axis, size_t d) {
  return axis && d < tensor.shape.size() ? tensor.shape[d] : 1;
}

// "1, 2, 4, 8": the possible numbers of ranks. A vocabulary is padded for any
// of them; here it is padded for the one that was asked for.
std::string possible_sizes(const Catalog& source, const Tensor& refused,
                           const Key& key) {
  constexpr uint64_t kMost = 1024;
  constexpr size_t kShown = 12;
  std::vector<uint64_t> sizes;
  for (uint64_t tp = 1; tp <= kMost && sizes.size() < kShown; ++tp) {
    const auto fits = [&](const Tensor& tensor) {
      const Key other = parse_key(tensor.name);
      return other.is_expert() != key.is_expert() || !has_rule(tensor, other) ||
             has_vocabulary(tensor.name) || divides(tensor, tp);
    };
    if (divides(refused, tp) && std::ranges::all_of(source.tensors, fits))
      sizes.push_back(tp);
  }
  return fmt::format("sizes that divide every {}: {}",
                     key.is_expert() ? "tensor of experts (--etp)" : "tensor",
                     fmt::join(sizes, ", "));
}

// Takes the source's boxes, if they are a plain partition.
bool own_boxes(const Tensor& tensor,
               const std::function<void(const DistBox&)>& take) {
  uint64_t sum = 0;
  for (const Piece& piece : tensor.pieces) {
    if (piece.flat) return false;
    sum += volume(piece.box);
  }
  if (tensor.pieces.size() < 2 || sum != volume(Box::whole(tensor.shape)))
    return false;
  // If the sum is right with replicas, something is missing, which the planner
  // finds. But here no two boxes may begin at the same place.
  std::vector<const Dims*> begins;
  for (const Piece& piece : tensor.pieces)
    if (volume(piece.box) != 0) begins.push_back(&piece.box.offset);
  std::ranges::sort(begins,
                    [](const Dims* a, const Dims* b) { return *a < *b; });
  for (size_t i = 1; i < begins.size(); ++i)
    if (*begins[i] == *begins[i - 1]) return false;
  for (const Piece& piece : tensor.pieces)
    if (volume(piece.box) != 0) take({.box = piece.box});
  return true;
}

class Cutter {
 public:
  Cutter(const Tensor& tensor, const Key& key, uint64_t parts,
         const std::function<void(const DistBox&)>& take)
      : tensor_(tensor), key_(key), parts_(parts), take_(take) {}

  void run() {
    const size_t rank = tensor_.shape.size();
    const size_t expert_at = key_.layer_axis ? 1 : 0;
    const bool layer_axis = key_.layer_axis && rank > 0;
    const bool expert_axis = key_.expert_axis && rank > expert_at;
    const uint64_t layers = extent(tensor_, layer_axis, 0);
    const uint64_t experts = extent(tensor_, expert_axis, expert_at);
    for (uint64_t layer = 0; layer < layers; ++layer)
      for (uint64_t expert = 0; expert < experts; ++expert) {
        DistBox box{.box = Box::whole(tensor_.shape),
                    .layer = key_.layer.value_or(layer),
                    .expert = key_.expert.value_or(expert)};
        if (layer_axis) narrow(box.box, 0, layer, 1);
        if (expert_axis) narrow(box.box, expert_at, expert, 1);
        cut(box);
      }
  }

 private:
  static void narrow(Box& box, size_t d, uint64_t begin, uint64_t count) {
    box.offset[d] = begin;
    box.shape[d] = count;
  }

  void cut(DistBox& box) {
    const TpRule& rule = tensor_.tp;
    // A gated tensor is two boxes even on one rank, as in Megatron.
    if (rule.state != State::kSplit || parts_ * rule.groups == 1) {
      take_(box);
      return;
    }
    for (box.tp = 0; box.tp < parts_; ++box.tp)
      for (const cuts::Run& run :
           cuts::chunks(tensor_.shape[rule.dim], rule.groups, parts_, box.tp)) {
        narrow(box.box, rule.dim, run.whole, run.count);
        take_(box);
      }
  }

  const Tensor& tensor_;
  const Key& key_;
  const uint64_t parts_;
  const std::function<void(const DistBox&)>& take_;
};

}  // namespace

bool has_rule(const Tensor& tensor, const Key& key) {
  if (!key.rooted && !key.tower) return false;
  if (tensor.tp.state == State::kUnknown) return false;
  return tensor.tp.state != State::kSplit ||
         tensor.tp.dim < tensor.shape.size();
}

void check_split(const Catalog& source, const Tensor& tensor, const Key& key,
                 const DistSplit& split) {
  if (!has_rule(tensor, key)) return;
  const uint64_t parts = parts_of(key, split);
  if (!divides(tensor, parts))
    throw unfaithful_error(
        {source.path, tensor.name},
        "dimension {} of {} has {} elements, which {} {}tensor-parallel ranks "
        "do not divide{}",
        tensor.tp.dim, to_string(tensor.shape), tensor.shape[tensor.tp.dim],
        parts, key.is_expert() ? "expert " : "",
        tensor.tp.groups > 1 ? fmt::format(" in {} groups", tensor.tp.groups)
                             : "")
        .with_hint(possible_sizes(source, tensor, key));
  if (!key.expert_axis || split.ep == 1) return;
  const size_t d = key.layer_axis ? 1 : 0;
  if (extent(tensor, true, d) % split.ep != 0)
    throw unfaithful_error({source.path, tensor.name},
                           "{} experts, which ep={} does not divide",
                           extent(tensor, true, d), split.ep)
        .with_hint("--ep must divide the number of experts");
}

void each_box(const Tensor& tensor, const Key& key, const DistSplit& split,
              const std::function<void(const DistBox&)>& take) {
  if (volume(Box::whole(tensor.shape)) == 0) {
    take({.box = Box::whole(tensor.shape)});
    return;
  }
  if (!has_rule(tensor, key)) {
    if (!own_boxes(tensor, take)) take({.box = Box::whole(tensor.shape)});
    return;
  }
  const uint64_t parts = parts_of(key, split);
  const uint64_t layers = extent(tensor, key.layer_axis, 0);
  const uint64_t experts =
      extent(tensor, key.expert_axis, key.layer_axis ? 1 : 0);
  const auto rows = checked_mul(layers, experts);
  const auto all = rows ? checked_mul(*rows, parts) : rows;
  if (!all || *all > kMostBoxes)
    throw resource_error({{}, tensor.name},
                         "a box for each of {} layers, {} experts and {} ranks "
                         "is more than {}",
                         layers, experts, parts, kMostBoxes);
  Cutter(tensor, key, parts, take).run();
}

}  // namespace ckpt::megatron
