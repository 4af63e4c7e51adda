// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/model.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";
constexpr std::string_view kOutput = "output_layer.weight";

// Of one rank: more than any model has, so that a hostile file's shapes don't
// become lists.
constexpr uint64_t kMostParts = uint64_t{1} << 22;

Key key_of(const Catalog& catalog, uint32_t tensor) {
  return parse_key(catalog.tensors[tensor].name);
}

bool in_layers(const Key& key) {
  return key.name.starts_with("decoder.layers.");
}

}  // namespace

// A part with its sort key.
struct ModelParams::Placed {
  std::vector<uint32_t> rank;
  uint8_t part = 0;
  bool shared = false;
  uint32_t tensor = 0;
  std::vector<Box> boxes;
};

ModelParams::ModelParams(const Catalog& catalog, const OrderStyle& style)
    : catalog_(catalog) {
  bool output = false;
  is_expert_.resize(catalog.tensors.size());
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t) {
    const Tensor& tensor = catalog.tensors[t];
    if (tensor.kind != Kind::model || !is_parameter(key_of(catalog, t)))
      continue;
    add(t, style);
    const Key key = key_of(catalog, t);
    output |= key.name == kOutput;
    mtp_ |= key.name.starts_with("mtp.");
    has_experts_ |= key.is_expert();
    is_expert_[t] = key.is_expert();
    if (key.expert) experts_ = std::max(experts_, *key.expert + 1);
    has_norms_ |= key.name.find("linear_qkv.layer_norm_") != key.name.npos;
  }
  tied_ = !output;
  for (const auto& [layer, entries] : numbered_)
    layers_ = std::max(layers_, layer + 1);
}

void ModelParams::add(uint32_t tensor, const OrderStyle& style) {
  const Tensor& what = catalog_.tensors[tensor];
  const Key key = key_of(catalog_, tensor);
  const auto order = order_of(key, style);
  if (!order)
    throw unfaithful_error({{}, what.name},
                           "where this parameter stands among others is not "
                           "known");
  Entry entry{.tensor = tensor, .order = *order};
  entry.layer_axis = key.layer_axis;
  entry.expert_axis = key.expert_axis;
  entry.expert = key.is_expert();
  entry.layer = key.layer.value_or(0);
  entry.number = key.expert.value_or(0);
  if (what.shape.size() < key.axes())
    throw unfaithful_error({{}, what.name}, "{} has no axis of its own",
                           to_string(what.shape));
  if (key.name.starts_with("embedding.")) {
    embedding_.push_back(std::move(entry));
  } else if (!in_layers(key)) {
    entry.own_number = true;
    end_.push_back(std::move(entry));
  } else if (key.layer) {
    numbered_[*key.layer].push_back(std::move(entry));
  } else {
    layers_ = std::max(layers_, what.shape[0]);
    stacked_.push_back(std::move(entry));
  }
}

// The rank's boxes of one layer and one expert, in the order of its memory.
std::vector<Box> ModelParams::boxes(const Entry& entry, uint64_t layer,
                                    uint64_t expert,
                                    const RankPlace& place) const {
  const Tensor& tensor = catalog_.tensors[entry.tensor];
  Box box = Box::whole(tensor.shape);
  size_t axis = 0;
  const auto pick = [&](uint64_t index) {
    if (index >= tensor.shape[axis])
      throw unfaithful_error({{}, tensor.name}, "{} has no part {} of axis {}",
                             to_string(tensor.shape), index, axis);
    box.offset[axis] = index;
    box.shape[axis++] = 1;
  };
  if (entry.layer_axis) pick(layer);
  if (entry.expert_axis) pick(expert);
  if (place.tp_size == 1 || tensor.tp.state == TpRule::State::kReplicated)
    return {box};
  if (tensor.tp.state == TpRule::State::kUnknown ||
      tensor.tp.dim >= tensor.shape.size())
    throw unfaithful_error({{}, tensor.name},
                           "no rule says how tensor-parallel ranks split it");
  const uint32_t dim = tensor.tp.dim;
  const uint64_t groups = std::max<uint32_t>(tensor.tp.groups, 1);
  const uint64_t size = box.shape[dim];
  if (size % groups || size / groups % place.tp_size)
    throw unfaithful_error({{}, tensor.name},
                           "dimension {} of {} is not {} x {} equal parts", dim,
                           to_string(tensor.shape), groups, place.tp_size);
  std::vector<Box> all;
  const uint64_t count = size / groups / place.tp_size;
  for (uint64_t g = 0; g < groups; ++g) {
    all.push_back(box);
    all.back().offset[dim] += g * (size / groups) + place.tp * count;
    all.back().shape[dim] = count;
  }
  return all;
}

std::pair<uint64_t, uint64_t> ModelParams::experts_of(
    const Entry& entry, const RankPlace& place) const {
  if (!entry.expert) return {0, 1};
  const Tensor& tensor = catalog_.tensors[entry.tensor];
  const uint64_t count =
      entry.expert_axis ? tensor.shape[entry.layer_axis ? 1 : 0] : experts_;
  if (count % place.ep_size)
    throw unfaithful_error({{}, tensor.name},
                           "{} experts on {} expert-parallel ranks", count,
                           place.ep_size);
  const uint64_t each = count / place.ep_size;
  const uint64_t begin = place.ep * each, end = begin + each;
  if (entry.expert_axis) return {begin, end};
  if (entry.number < begin || entry.number >= end) return {0, 0};
  return {entry.number, entry.number + 1};
}

void ModelParams::add_entry(const Entry& entry, uint64_t layer,
                            const RankPlace& place, bool shared,
                            std::vector<Placed>& out) const {
  const uint64_t number = entry.own_number ? entry.layer : layer;
  const auto [begin, end] = experts_of(entry, place);
  if (end - begin > kMostParts - std::min<uint64_t>(kMostParts, out.size()))
    throw unfaithful_error({{}, catalog_.tensors[entry.tensor].name},
                           "a rank with more than {} parameters", kMostParts);
  for (uint64_t e = begin; e < end; ++e)
    out.push_back({entry.order.at(number, e), entry.order.part, shared,
                   entry.tensor, boxes(entry, layer, e, place)});
}

// The embedding is on the first chunk. If the last chunk needs it, too (it is a
// tied model's output layer, or predicts more tokens), that has a copy, and
// both are shared.
void ModelParams::add_ends(const Chunk& chunk, const RankPlace& place,
                           std::vector<Placed>& out) const {
  const bool copies = (tied_ || mtp_) && !(chunk.first && chunk.last);
  const auto shared = [&](const Entry& entry) {
    return copies && key_of(catalog_, entry.tensor).name == kWordEmbeddings;
  };
  if (chunk.first || (chunk.last && mtp_))
    for (const Entry& entry : embedding_)
      add_entry(entry, 0, place, shared(entry), out);
  if (!chunk.last) return;
  for (const Entry& entry : end_) add_entry(entry, 0, place, false, out);
  if (chunk.first || !tied_) return;
  const auto output = order_of(parse_key(kOutput), {});
  for (const Entry& entry : embedding_)
    if (key_of(catalog_, entry.tensor).name == kWordEmbeddings)
      out.push_back(
          {output->rank, 0, !mtp_, entry.tensor, boxes(entry, 0, 0, place)});
}

std::vector<RankParam> ModelParams::of(const Chunk& chunk,
                                       const RankPlace& place,
                                       Experts experts) const {
  std::vector<Placed> placed;
  add_ends(chunk, place, placed);
  for (uint64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
    for (const Entry& entry : stacked_)
      add_entry(entry, layer, place, false, placed);
    const auto numbered = numbered_.find(layer);
    if (numbered == numbered_.end()) continue;
    for (const Entry& entry : numbered->second)
      add_entry(entry, layer, place, false, placed);
  }
  std::erase_if(placed, [&](const Placed& p) {
    return experts != Experts::kToo &&
           is_expert_[p.tensor] != (experts == Experts::kOnly);
  });
  std::ranges::sort(placed, [](const Placed& a, const Placed& b) {
    return std::tie(a.rank, a.part) < std::tie(b.rank, b.part);
  });
  return join(placed);
}

std::vector<RankParam> ModelParams::join(
    const std::vector<Placed>& placed) const {
  std::vector<RankParam> params;
  for (size_t i = 0; i < placed.size(); ++i) {
    const Placed& p = placed[i];
    const Tensor& tensor = catalog_.tensors[p.tensor];
    const bool more = i > 0 && placed[i - 1].rank == p.rank;
    if (more && placed[i - 1].part == p.part)
      throw unfaithful_error({{}, tensor.name},
                             "stands at the same place as {}",
                             catalog_.tensors[placed[i - 1].tensor].name);
    if (!more) params.push_back({{}, 0, tensor.dtype, p.shared});
    RankParam& param = params.back();
    if (param.dtype != tensor.dtype)
      throw unfaithful_error({{}, tensor.name}, "is {}, its other half {}",
                             name(tensor.dtype), name(param.dtype));
    for (const Box& box : p.boxes) {
      param.numel += volume(box);
      param.parts.push_back({p.tensor, box});
    }
  }
  return params;
}

}  // namespace ckpt::megatron
