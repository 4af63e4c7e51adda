// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/numbering.h"

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using text::printable;

constexpr uint64_t kMostLayers = 100'000;
constexpr uint64_t kMostExperts = uint64_t{1} << 20;

// What an entry shares with its neighbours of other experts: the names of
// modules before the number. A grouped linear layer lists weight0, bias0,
// weight1, bias1, …, which are one run.
std::string expert_stem(std::string_view name, const LegacyName& parsed) {
  if (!parsed.expert) return {};
  return std::string(name.substr(0, name.rfind('.', parsed.expert->at) + 1));
}

}  // namespace

LegacyNumbering::LegacyNumbering(const std::vector<LegacyRank>& ranks,
                                 const Facts& facts, const std::string& path) {
  chunks_ = static_cast<uint32_t>(ranks.front().chunks.size());
  for (const LegacyRank& rank : ranks)
    stages_ = std::max(stages_, rank.dir.pp + 1);
  uint32_t seen = UINT32_MAX;  // the previous rank's stage
  for (const LegacyRank& rank : ranks) {
    if (rank.chunks.size() != chunks_)
      throw input_error({rank.file.path, {}},
                        "has {} state dicts of a model, {} has {}",
                        rank.chunks.size(), ranks.front().dir.name, chunks_);
    count_layers(rank, rank.dir.pp != seen);
    seen = rank.dir.pp;
  }
  for (auto& [name, stack] : stacks_) {
    uint64_t next = 0;
    for (size_t i = 0; i < stack.count.size(); ++i) {
      stack.first[i] = next;
      next += stack.count[i];
    }
  }
  check_total(facts, path);
  find_experts(ranks, facts, path);
}

void LegacyNumbering::count_layers(const LegacyRank& rank, bool first) {
  std::map<std::pair<std::string, uint32_t>, uint64_t> counts;
  for (uint32_t v = 0; v < rank.chunks.size(); ++v) {
    for (const LegacyEntry& entry : rank.chunks[v]) {
      const LegacyName name = parse_legacy_name(entry.name);
      if (!name.layer) continue;
      if (name.layer->value >= kMostLayers)
        throw input_error({rank.file.path, printable(entry.name)},
                          "layer {} is more than {}", name.layer->value,
                          kMostLayers);
      uint64_t& count = counts[{name.stack, v}];
      count = std::max(count, name.layer->value + 1);
    }
  }
  for (const auto& [key, count] : counts) {
    Stack& stack = stacks_[key.first];
    stack.count.resize(size_t{chunks_} * stages_, 0);
    stack.first.resize(size_t{chunks_} * stages_, 0);
    uint64_t& known = stack.count[size_t{key.second} * stages_ + rank.dir.pp];
    if (first) known = count;
    if (known != count)
      throw input_error({rank.file.path, {}},
                        "has {} of the layers {}#, other ranks of pipeline "
                        "stage {} have {}",
                        count, printable(key.first), rank.dir.pp, known);
  }
}

// Several stacks (an encoder and a decoder) have their own arguments.
void LegacyNumbering::check_total(const Facts& facts,
                                  const std::string& path) const {
  if (!facts.num_layers || stacks_.size() != 1) return;
  const auto& [name, stack] = *stacks_.begin();
  uint64_t total = 0;
  for (const uint64_t count : stack.count) total += count;
  if (total == *facts.num_layers) return;
  throw input_error({path, {}},
                    "{} layers are there ({}#), args.num_layers is {}", total,
                    printable(name), *facts.num_layers)
      .with_hint(
          "files of another checkpoint among these, or layers without "
          "parameters, whose places can't be told");
}

void LegacyNumbering::find_experts(const std::vector<LegacyRank>& ranks,
                                   const Facts& facts,
                                   const std::string& path) {
  uint64_t local = 0;
  for (const LegacyRank& rank : ranks)
    for (const LegacyChunk& chunk : rank.chunks)
      for (const LegacyEntry& entry : chunk)
        if (const auto name = parse_legacy_name(entry.name); name.expert)
          local = std::max(local, name.expert->value + 1);
  if (local == 0) return;
  const uint64_t ep = facts.ep.value_or(1);
  experts_ = local;
  const uint64_t total = facts.num_experts.value_or(local * ep);
  if (local > kMostExperts || total % ep != 0 || total / ep != local)
    throw input_error({path, {}},
                      "{} experts on a rank and ep={}, args.num_experts is {}",
                      local, ep, total);
}

std::string LegacyNumbering::global_name(const LegacyDir& rank, uint32_t chunk,
                                         std::string_view name) const {
  const LegacyName parsed = parse_legacy_name(name);
  uint64_t layer = 0, expert = 0;
  if (parsed.layer)
    layer = parsed.layer->value +
            stacks_.at(parsed.stack).first[size_t{chunk} * stages_ + rank.pp];
  if (parsed.expert)
    expert = parsed.expert->value + uint64_t{rank.ep} * experts_;
  return with_numbers(name, parsed, layer, expert);
}

std::vector<std::string> regroup(std::string_view name,
                                 const std::vector<std::string>& path) {
  std::vector<std::string> parts;
  for (const std::string& part : path) {
    size_t end = 0;
    const auto dots = std::ranges::count(part, '.');
    for (auto i = dots; i >= 0 && end != name.npos; --i)
      end = name.find('.', i == dots ? 0 : end + 1);
    parts.emplace_back(name.substr(0, end));
    name = end == name.npos ? std::string_view() : name.substr(end + 1);
  }
  return parts;
}

namespace {

// Makes one stage's state dicts as one of its ranks has them, but with the
// experts of all ranks.
class OrderBuilder {
 public:
  OrderBuilder(const std::vector<LegacyRank>& ranks, size_t rank,
               const LegacyNumbering& numbering, uint64_t ep)
      : ranks_(ranks), rank_(rank), numbering_(numbering), ep_(ep) {}

  GlobalChunk build(uint32_t v) {
    const LegacyChunk& chunk = ranks_[rank_].chunks[v];
    for (size_t i = 0; i < chunk.size();) {
      const LegacyName name = parse_legacy_name(chunk[i].name);
      const std::string stem = expert_stem(chunk[i].name, name);
      size_t end = i + 1;
      // A run of one layer's experts, which other ranks continue.
      while (!stem.empty() && end < chunk.size() &&
             expert_stem(chunk[end].name, parse_legacy_name(chunk[end].name)) ==
                 stem)
        ++end;
      for (uint32_t e = 0; e < (stem.empty() ? 1 : ep_); ++e)
        for (size_t k = i; k < end; ++k)
          add(chunk[k], v, stem.empty() ? ranks_[rank_].dir.ep : e);
      i = end;
    }
    return std::move(out_);
  }

 private:
  void add(const LegacyEntry& entry, uint32_t v, uint32_t e) {
    LegacyDir where = ranks_[rank_].dir;
    where.ep = e;
    GlobalEntry& added = out_.emplace_back();
    added.name = numbering_.global_name(where, v, entry.name);
    added.path = regroup(added.name, entry.path);
    added.rank = rank_;
    added.node = entry.node;
    added.tensor = entry.tensor.has_value();
  }

  const std::vector<LegacyRank>& ranks_;
  size_t rank_;
  const LegacyNumbering& numbering_;
  uint64_t ep_;
  GlobalChunk out_;
};

}  // namespace

std::vector<GlobalChunk> global_order(const std::vector<LegacyRank>& ranks,
                                      const LegacyNumbering& numbering,
                                      uint64_t ep) {
  std::vector<GlobalChunk> all(size_t{numbering.chunks()} * numbering.stages());
  for (size_t r = 0; r < ranks.size(); ++r) {
    const uint32_t p = ranks[r].dir.pp;
    if (r != 0 && ranks[r - 1].dir.pp == p) continue;
    for (uint32_t v = 0; v < numbering.chunks(); ++v)
      all[size_t{v} * numbering.stages() + p] =
          OrderBuilder(ranks, r, numbering, ep).build(v);
  }
  return all;
}

}  // namespace ckpt::megatron
