// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/owners.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::modelopt {
namespace {

// No model has more; bounds what is read or typed.
constexpr uint32_t kMostBlocks = 100'000;

[[noreturn]] void refuse(std::string_view text) {
  throw usage_error({}, "--blocks '{}': expected a list of blocks",
                    text::printable(text))
      .with_hint(
          "as in --blocks 0-3,8; several ranks: --blocks 0-3,8/4-7, or the "
          "option once for each");
}

uint32_t parse_number(std::string_view text, std::string_view whole) {
  const auto value = text::number<uint32_t>(text);
  if (!value || *value >= kMostBlocks) refuse(whole);
  return *value;
}

// Cuts `text` at each `mark`.
template <class Take>
void split(std::string_view text, char mark, Take take) {
  for (size_t at; (at = text.find(mark)) != text.npos;
       text.remove_prefix(at + 1))
    take(text.substr(0, at));
  take(text);
}

}  // namespace

std::set<uint32_t> parse_blocks(std::string_view text) {
  std::set<uint32_t> blocks;
  split(text, ',', [&](std::string_view part) {
    const size_t dash = part.find('-');
    const uint32_t first = parse_number(part.substr(0, dash), text);
    const uint32_t last =
        dash == part.npos ? first : parse_number(part.substr(dash + 1), text);
    if (last < first) refuse(text);
    for (uint32_t block = first; block <= last; ++block) blocks.insert(block);
  });
  return blocks;
}

std::vector<std::set<uint32_t>> parse_ranks(std::string_view text) {
  std::vector<std::set<uint32_t>> ranks;
  split(text, '/', [&](std::string_view part) {
    ranks.push_back(part.empty() ? std::set<uint32_t>() : parse_blocks(part));
  });
  const auto any = [](const auto& blocks) { return !blocks.empty(); };
  if (std::ranges::none_of(ranks, any)) refuse(text);
  return ranks;
}

Owners Owners::even(uint64_t count, uint64_t ranks) {
  Owners owners;
  owners.ranks_ = ranks;
  const uint64_t each = count / ranks, more = count % ranks;
  for (uint64_t rank = 0; rank < ranks && owners.owner_.size() < count; ++rank)
    owners.owner_.insert(owners.owner_.end(), each + (rank < more ? 1 : 0),
                         static_cast<uint32_t>(rank));
  return owners;
}

Owners Owners::given(std::string_view text, uint64_t count) {
  const auto ranks = parse_ranks(text);
  Owners owners;
  owners.ranks_ = ranks.size();
  owners.owner_.resize(count);
  for (uint32_t rank = 0; const auto& blocks : ranks) {
    for (const uint32_t block : blocks) {
      if (block >= count)
        throw usage_error({}, "--blocks {}: there is no block {}; {} blocks",
                          text, block, count);
      if (owners.owner_[block])
        throw usage_error({},
                          "--blocks {}: block {} is given to ranks {} and "
                          "{}",
                          text, block, *owners.owner_[block], rank);
      owners.owner_[block] = rank;
    }
    ++rank;
  }
  return owners;
}

std::optional<uint32_t> Owners::of_block(uint64_t block) const {
  return block < owner_.size() ? owner_[block] : std::nullopt;
}

std::vector<uint32_t> Owners::of(const Place& place, bool tied) const {
  std::set<uint32_t> ranks;
  const auto add = [&](std::optional<uint32_t> rank) {
    if (rank) ranks.insert(*rank);
  };
  const uint64_t last = owner_.size() - 1;
  // Blocks under names that no rule knows (transformer.h.0) are not shared out:
  // one rank has the whole model. In every file it would be read from the last
  // alone, the only one in the index.
  if (owner_.empty()) return {0};
  switch (place.part) {
    case Part::kBlock:
      add(of_block(place.block));
      break;
    case Part::kEmbedding:
      add(of_block(0));
      break;
    case Part::kHead:
      if (tied) add(of_block(0));
      add(of_block(last));
      break;
    case Part::kNorm:
      add(of_block(last));
      break;
    case Part::kOther:
      for (uint32_t rank = 0; rank < ranks_; ++rank) ranks.insert(rank);
      break;
  }
  return {ranks.begin(), ranks.end()};
}

uint64_t block_count(const Catalog& catalog, const Naming& naming,
                     const std::optional<Config>& config) {
  uint64_t count = 0;
  for (const Tensor& tensor : catalog.tensors) {
    const Place place = naming.place(tensor.name);
    if (place.part == Part::kBlock)
      count = std::max<uint64_t>(count, uint64_t{place.block} + 1);
  }
  if (count > kMostBlocks)
    throw unsafe_error({catalog.path, {}}, "{} blocks, at most {} are read",
                       count, kMostBlocks);
  // Blocks that no name is known to belong to can't be shared out.
  if (!config || count == 0) return count;
  const uint64_t said =
      config->any_model ? config->blocks.size() : config->layers.value_or(0);
  return said > kMostBlocks ? count : std::max(count, said);
}

}  // namespace ckpt::modelopt
