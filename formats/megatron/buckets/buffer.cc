// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/buffer.h"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::megatron {
namespace {

// True if `length` is the bucket's, with or without its end padding.
bool length_agrees(uint64_t length, const BufferBucket& bucket, bool sure,
                   uint64_t ranks) {
  if (length == bucket.unpadded) return true;
  if (length < bucket.unpadded) return false;
  for (const bool high : {false, true}) {
    const uint64_t divisor = bucket_divisor(ranks, high);
    if (divisor == 0) continue;
    const uint64_t padding = length - bucket.unpadded;
    // Without knowing how many ranks share it, any padding to 128 will do,
    // but only if the unpadded length is known from elsewhere.
    if (length % divisor == 0 && padding < divisor && (ranks || sure))
      return true;
    if (!ranks && sure && length % 128 == 0) return true;
  }
  return ranks && length % ranks == 0 && length - bucket.unpadded < ranks;
}

// The possible bucket sizes. Buckets that ended because they were long enough
// have at least that many elements; the last one may be shorter, and so may the
// one that a shared embedding ended. The shortest of them stands for all sizes
// that make the same buckets.
std::vector<std::optional<uint64_t>> bucket_sizes(
    const std::vector<uint64_t>& lengths, std::span<const BufferParam> params) {
  std::vector<std::optional<uint64_t>> sizes;
  const size_t first =
      !params.empty() && params.back().shared_embedding ? 1 : 0;
  const size_t most =
      !params.empty() && params.front().shared_embedding ? 2 : 1;
  for (size_t short_ones = 1; short_ones <= most; ++short_ones) {
    if (lengths.size() <= first + short_ones) continue;
    const auto begin = lengths.begin() + static_cast<ptrdiff_t>(first);
    const auto end = lengths.end() - static_cast<ptrdiff_t>(short_ones);
    sizes.emplace_back(*std::min_element(begin, end));
  }
  sizes.emplace_back();
  return sizes;
}

}  // namespace

BufferFitter::BufferFitter(const Catalog& catalog, const Groups& groups)
    : catalog_(catalog),
      groups_(groups),
      objects_(catalog),
      // All chunks of a zarr array have one size.
      edges_matter_(catalog.format != "megatron_zarr") {}

std::optional<BufferLayout> BufferFitter::fit(const BufferRef& ref,
                                              std::span<const RankParam> params,
                                              uint64_t ranks) {
  std::vector<BufferParam> sizes;
  sizes.reserve(params.size());
  for (const RankParam& param : params)
    sizes.push_back({param.numel, param.shared_embedding});
  BufferRules rules;
  rules.divisor = std::max<uint64_t>(bucket_divisor(ranks), 1);
  if (auto layout = try_rules(ref, sizes, rules, ranks)) return layout;
  const std::string why = why_;
  rules.pad_before_shared = ranks;
  if (ranks > 1)
    if (auto layout = try_rules(ref, sizes, rules, ranks)) return layout;
  rules.pad_before_shared = 0;
  rules.align = false;
  if (auto layout = try_rules(ref, sizes, rules, ranks)) return layout;
  why_ = why;
  return std::nullopt;
}

std::optional<BufferLayout> BufferFitter::try_rules(
    const BufferRef& ref, std::span<const BufferParam> params,
    BufferRules rules, uint64_t ranks) {
  std::vector<uint64_t> lengths;
  for (const Bucket& bucket : buffer(ref).buckets)
    lengths.push_back(bucket.length);
  const std::vector<uint64_t>* stored = stored_lengths(ref);
  for (const auto& size : bucket_sizes(stored ? *stored : lengths, params)) {
    rules.bucket_size = size;
    BufferLayout layout = lay_out_buffer(params, rules);
    if (agrees(ref, layout, ranks) && edges_agree(ref, layout)) return layout;
  }
  return std::nullopt;
}

const std::vector<uint64_t>* BufferFitter::stored_lengths(
    const BufferRef& ref) {
  auto [at, fresh] = lengths_.try_emplace(ref.group);
  if (fresh) at->second = objects_.unpadded(ref.group);
  if (!at->second || ref.index >= at->second->size()) return nullptr;
  return &(*at->second)[ref.index];
}

bool BufferFitter::agrees(const BufferRef& ref, const BufferLayout& layout,
                          uint64_t ranks) {
  const std::vector<Bucket>& buckets = buffer(ref).buckets;
  const std::vector<uint64_t>* stored = stored_lengths(ref);
  const std::string where =
      fmt::format("{}gbuf_idx_{}", object_prefix(ref.group), ref.index);
  if (layout.buckets.size() != buckets.size() ||
      (stored && stored->size() != buckets.size())) {
    why_ = fmt::format("{} has {} buckets, its parameters would make {}", where,
                       buckets.size(), layout.buckets.size());
    return false;
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    const BufferBucket& bucket = layout.buckets[b];
    if (stored && (*stored)[b] != bucket.unpadded) {
      why_ = fmt::format(
          "bucket {} of {} has {} elements by per_bucket_numel_unpadded, its "
          "parameters would need {}",
          b, where, (*stored)[b], bucket.unpadded);
      return false;
    }
    if (length_agrees(buckets[b].length, bucket, stored != nullptr, ranks))
      continue;
    why_ = fmt::format(
        "bucket {} of {} has {} elements, its parameters would "
        "need {}",
        b, where, buckets[b].length, bucket.unpadded);
    return false;
  }
  return true;
}

bool BufferFitter::edges_agree(const BufferRef& ref,
                               const BufferLayout& layout) {
  if (!edges_matter_) return true;
  const std::vector<Bucket>& buckets = buffer(ref).buckets;
  for (const BufferSlot& slot : layout.slots) {
    if (slot.begin == slot.end) continue;
    const auto& known = edges(buckets[slot.bucket].states.front().second);
    if (std::ranges::binary_search(known, slot.begin) &&
        std::ranges::binary_search(known, slot.end))
      continue;
    why_ = fmt::format(
        "no stored chunk of bucket {} of {}gbuf_idx_{} begins at element {} "
        "and ends at {}, as a parameter would",
        slot.bucket, object_prefix(ref.group), ref.index, slot.begin, slot.end);
    return false;
  }
  return true;
}

const std::vector<uint64_t>& BufferFitter::edges(uint32_t tensor) {
  auto [at, fresh] = edges_.try_emplace(tensor);
  if (!fresh) return at->second;
  for (const Piece& piece : catalog_.tensors[tensor].pieces) {
    const uint64_t base = piece.box.offset[0];
    const uint64_t size = piece.box.shape[0];
    at->second.push_back(base + (piece.flat ? piece.flat->begin : 0));
    at->second.push_back(base + (piece.flat ? piece.flat->end : size));
  }
  std::ranges::sort(at->second);
  return at->second;
}

}  // namespace ckpt::megatron
