// SPDX-License-Identifier: Apache-2.0
#include "lib/unruled.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"

namespace ckpt {
namespace {

constexpr std::string_view kWhy = "no rule says how ranks share it";

using Records = std::map<std::pair<uint32_t, uint64_t>, const StoredCrc*>;

Records records_of(const Catalog& catalog) {
  Records records;
  for (const StoredCrc& crc : catalog.crcs)
    records[{crc.file, crc.begin}] = &crc;
  return records;
}

// The checksum of a copy that is a record of its own.
std::optional<uint32_t> crc_of(const Tensor& tensor, const Records& records) {
  if (tensor.pieces.size() != 1 || !tensor.pieces[0].extent.strides.empty())
    return std::nullopt;
  const Extent& extent = tensor.pieces[0].extent;
  const auto at = records.find({extent.file, extent.offset});
  if (at == records.end() ||
      at->second->end - at->second->begin != byte_size(tensor))
    return std::nullopt;
  return at->second->crc32;
}

}  // namespace

void refuse_row_order(const Catalog& catalog) {
  const auto found =
      std::ranges::find(catalog.problems, kRowOrder, &Problem::kind);
  if (found != catalog.problems.end())
    throw unfaithful_error({found->file, found->tensor}, "{}", found->message)
        .with_hint("`ckpt convert SRC DST --set nh=N` says it");
}

void set_aside(Tensor& tensor, const std::vector<size_t>& ranks,
               Catalog& catalog) {
  const auto with = [&](std::vector<Piece> pieces) {
    Tensor copy = tensor;
    copy.pieces = std::move(pieces);
    copy.tie = 0;
    return copy;
  };
  // A rank may have several pieces, and more than one copy of each.
  std::map<std::pair<size_t, size_t>, std::vector<Piece>> copies;
  std::map<std::pair<size_t, std::vector<uint64_t>>, size_t> times;
  std::vector<Piece> own;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    const Piece& piece = tensor.pieces[i];
    if (ranks[i] == ranks[0]) own.push_back(piece);
    const std::vector<uint64_t> at(piece.box.offset.begin(),
                                   piece.box.offset.end());
    copies[{ranks[i], times[{ranks[i], at}]++}].push_back(piece);
  }
  tensor.pieces = std::move(own);
  const Tensor first = with(copies.at({ranks[0], 0}));
  for (auto& [copy, pieces] : copies) {
    if (copy.first == ranks[0]) continue;
    catalog.redundant.push_back({.tensor = with(std::move(pieces)),
                                 .value = {},
                                 .same_as = first,
                                 .why = std::string(kWhy)});
  }
}

bool is_unruled(const Redundant& one) { return one.why == kWhy; }

std::string unruled_hint(const std::string& tensor) {
  return fmt::format(
      "--shard-dims RULES.json says it: {{\"{}\": 0}} if dimension 0 is cut, "
      "null instead of 0 if each rank holds the whole",
      tensor);
}

std::string Unruled::text() const {
  if (different > 1) return fmt::format("{} different slices, no rule", copies);
  return fmt::format("{} copies or slices, no rule", copies);
}

std::vector<Unruled> unruled_of(const Catalog& catalog) {
  std::unordered_map<std::string_view, std::vector<const Redundant*>> copies;
  for (const Redundant& one : catalog.redundant)
    if (is_unruled(one)) copies[one.tensor.name].push_back(&one);
  std::vector<Unruled> found;
  if (copies.empty()) return found;
  const Records records = records_of(catalog);
  for (const Tensor& tensor : catalog.tensors) {
    const auto at = copies.find(tensor.name);
    if (at == copies.end()) continue;
    found.push_back({&tensor, at->second.size() + 1, size_t{0}});
    Unruled& one = found.back();
    std::set<uint32_t> crcs;
    for (const Redundant* copy : at->second) {
      const auto left = crc_of(*copy->same_as, records);
      const auto right = crc_of(copy->tensor, records);
      if (!left || !right || byte_size(tensor) == 0) continue;
      crcs.insert({*left, *right});
    }
    one.different = crcs.size();
  }
  return found;
}

void drop_unruled(Catalog& catalog) {
  if (catalog.redundant.empty()) return;
  std::unordered_set<std::string_view> names;
  for (const Tensor& tensor : catalog.tensors) names.insert(tensor.name);
  std::erase_if(catalog.redundant, [&](const Redundant& one) {
    return is_unruled(one) && !names.contains(one.tensor.name);
  });
}

}  // namespace ckpt
