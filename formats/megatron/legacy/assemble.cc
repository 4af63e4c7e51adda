// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/assemble.h"

#include <fmt/ranges.h>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/sizes.h"
#include "lib/text/format.h"
#include "lib/unruled.h"

namespace ckpt::megatron {
namespace {

using text::printable;

std::string last_module(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  const std::string_view before = name.substr(0, dot);
  return std::string(before.substr(before.rfind('.') + 1));
}

}  // namespace

LegacySizes legacy_sizes(const Facts& facts, const std::string& path) {
  LegacySizes sizes{.tp = facts.tp.value_or(1),
                    .pp = facts.pp.value_or(1),
                    .ep = facts.ep.value_or(1),
                    .etp = facts.etp.value_or(facts.tp.value_or(1)),
                    .tied = false};
  // Very old models lacked this argument: their embeddings were tied.
  sizes.tied = sizes.pp > 1 && !facts.untied.value_or(!facts.any);
  if (sizes.tp % sizes.etp != 0)
    throw input_error({path, {}},
                      "args.expert_tensor_parallel_size is {}, which does not "
                      "divide tp={}",
                      sizes.etp, sizes.tp)
        .with_hint(
            "ranks with more expert parts than tensor-parallel ranks write "
            "over each other's files");
  return sizes;
}

std::string LegacyAssembler::name_of(const LegacyRank& rank, uint32_t chunk,
                                     const LegacyEntry& entry) const {
  std::string name = numbering_.global_name(rank.dir, chunk, entry.name);
  if (sizes_.tied)
    if (auto embedding = embedding_of_copy(name)) return *embedding;
  return name;
}

LegacyAssembler::Whole& LegacyAssembler::whole(const std::string& name) {
  const auto [at, fresh] = by_name_.try_emplace(name, wholes_.size());
  if (fresh) {
    wholes_.emplace_back();
    wholes_.back().tensor.name = name;
  }
  return wholes_[at->second];
}

void LegacyAssembler::add_order(const std::vector<GlobalChunk>& chunks) {
  for (const GlobalChunk& chunk : chunks)
    for (const GlobalEntry& entry : chunk)
      if (entry.tensor &&
          !(sizes_.tied && embedding_of_copy(entry.name).has_value()))
        whole(entry.name);
}

RowOrder LegacyAssembler::row_order(const LegacyRank& rank,
                                    const LegacyEntry& entry) {
  const std::string module = last_module(entry.name);
  RowOrder order;
  if (rank.version >= 2 ||
      (module != "query_key_value" && module != "key_value"))
    return order;
  const uint64_t heads = facts_.num_attention_heads.value_or(0);
  if (heads == 0) {
    order_unknown_ = entry.name;
    return order;
  }
  order.version = static_cast<int>(rank.version);
  order.parts = module == "key_value" ? 2 : 3;
  const uint64_t rows =
      entry.tensor->shape.empty() ? 0 : entry.tensor->shape[0];
  order.heads = heads / sizes_.tp;
  if (order.heads == 0 || heads % sizes_.tp != 0 ||
      rows % (order.heads * order.parts) != 0)
    throw input_error(
        {rank.file.path, printable(entry.name)},
        "checkpoint_version {}: {} rows don't make {} parts of {} "
        "heads on each of {} ranks",
        rank.version, rows, order.parts, heads, sizes_.tp)
        .with_hint("args.num_attention_heads must be that of the model");
  const uint64_t hn = rows / (order.heads * order.parts);
  if (facts_.kv_channels && *facts_.kv_channels != hn)
    throw input_error({rank.file.path, printable(entry.name)},
                      "{} rows to a head, args.kv_channels is {}", hn,
                      *facts_.kv_channels);
  return order;
}

void LegacyAssembler::note_mixers(const LegacyRank& rank) {
  mixers_.assign(rank.chunks.size(), {});
  for (size_t v = 0; v < rank.chunks.size(); ++v)
    for (const LegacyEntry& entry : rank.chunks[v])
      if (entry.tensor) mixers_[v].add(entry.name, entry.tensor->shape);
}

Groups LegacyAssembler::groups_of(const Whole& whole, const LegacyEntry& entry,
                                  uint32_t chunk) const {
  if (whole.ranks == 1 || parts_of(entry.name).empty()) return {};
  Groups groups = mixers_.at(chunk).need(catalog_.path, entry.name);
  for (uint64_t& size : groups) size *= whole.ranks;  // fits, as the sum does
  return groups;
}

TpRule LegacyAssembler::rule_of(const std::string& param,
                                const Shape& shape) const {
  const TpRule said = user_.tp(param);
  if (said.state == TpRule::State::kSplit && said.dim >= shape.size())
    throw usage_error({catalog_.path, printable(param)},
                      "{}: each rank has {}, which has no dimension {}",
                      user_.source(), to_string(shape), said.dim);
  if (said.state != TpRule::State::kUnknown) return said;
  const TpRule rule = tp_rule(param, facts_);
  if (rule.state == TpRule::State::kUnknown && sizes_.tp > 1)
    return rule_by_sizes(param, shape, sizes_.tp, facts_);
  const bool fits =
      rule.state != TpRule::State::kSplit || rule.dim < shape.size();
  return fits ? rule : TpRule{};
}

void LegacyAssembler::begin(Whole& whole, const std::string& param,
                            const LocalTensor& part, const std::string& file,
                            bool cut) {
  const bool expert = parse_legacy_name(param).is_expert;
  whole.begun = true;
  whole.first = file;
  whole.local = part.shape;
  whole.ranks = expert ? sizes_.etp : sizes_.tp;
  whole.rule = cut ? rule_of(param, part.shape) : TpRule::replicated();
  whole.tensor.tp = whole.rule;
  // What no rule explains is taken to be whole, which is proven before anything
  // is written.
  if (whole.rule.state == TpRule::State::kUnknown)
    whole.rule = TpRule::replicated();
  if (expert && cut) check_expert(whole, param, file);
  const auto shape = whole_shape(part.shape, whole.rule, whole.ranks);
  if (!shape)
    throw input_error({file, printable(whole.tensor.name)},
                      "{} parts of shape {} don't make a tensor", whole.ranks,
                      to_string(part.shape));
  whole.tensor.dtype = part.dtype;
  whole.tensor.shape = *shape;
  whole.seen.assign(whole.rule.state == TpRule::State::kSplit ? whole.ranks : 1,
                    false);
}

void LegacyAssembler::check_expert(const Whole& whole, const std::string& param,
                                   const std::string& file) const {
  const std::string last = param.substr(param.rfind('.') + 1);
  // Several experts in one matrix, in their own order.
  if (param.find(".experts.weight") != std::string::npos &&
      sizes_.ep * sizes_.etp > 1)
    throw unfaithful_error({file, printable(param)},
                           "holds the experts of a rank in one matrix "
                           "(grouped_gemm), of which there are {} parts",
                           sizes_.ep * sizes_.etp)
        .with_hint("save it with TEGroupedMLP or SequentialMLP names");
  if (sizes_.etp > 1 && sizes_.expert_ffn && last.starts_with("weight") &&
      param.find("linear_fc2.") != std::string::npos &&
      whole.local.size() == 2 && whole.local[1] == *sizes_.expert_ffn)
    throw input_error({file, printable(param)},
                      "has all {} columns of an expert, although args say "
                      "that {} ranks share them "
                      "(expert_tensor_parallel_size)",
                      whole.local[1], sizes_.etp)
        .with_hint("the args are those of another run");
}

void LegacyAssembler::add(Whole& whole, const std::string& param,
                          const From& from, bool cut) {
  const auto& [rank, chunk, entry, part, file] = from;
  if (!whole.begun) begin(whole, param, part, file, cut);
  if (part.shape != whole.local || part.dtype != whole.tensor.dtype)
    throw input_error({file, printable(whole.tensor.name)},
                      "{} of shape {}, but {} of {} in {}", name(part.dtype),
                      to_string(part.shape), name(whole.tensor.dtype),
                      to_string(whole.local), whole.first)
        .with_hint("the ranks' files are not of one checkpoint");
  const uint64_t slot = rank.dir.tp % whole.ranks;
  whole.seen[whole.seen.size() == 1 ? 0 : slot] = true;
  if (cut)
    add_part(whole.tensor, part, whole.rule, slot, whole.ranks,
             row_order(rank, entry), groups_of(whole, entry, chunk));
  else
    add_part(whole.tensor, part, whole.rule, slot, whole.ranks);
  whole.slots.resize(whole.tensor.pieces.size(), slot);
}

void LegacyAssembler::add_model(const LegacyRank& rank) {
  note_mixers(rank);
  for (uint32_t v = 0; v < rank.chunks.size(); ++v)
    for (const LegacyEntry& entry : rank.chunks[v]) {
      if (!entry.tensor) continue;
      const std::string name = name_of(rank, v, entry);
      add(whole(name), name, {rank, v, entry, *entry.tensor, rank.file.path},
          true);
    }
}

void LegacyAssembler::add_states(const LegacyRank& rank,
                                 const LegacyStates& states) {
  const std::string& file = states.form == LegacyStates::Form::kFlat
                                ? rank.dir.optimizer_file
                                : rank.file.path;
  note_mixers(rank);
  for (const LocalState& state : states.states) {
    const LegacyEntry& entry = rank.chunks[state.chunk][state.entry];
    const std::string param = name_of(rank, state.chunk, entry);
    Whole& to = whole(state.state + "." + param);
    to.tensor.kind = Kind::optim;
    to.tensor.param = param;
    to.tensor.state = state.state;
    add(to, param, {rank, state.chunk, entry, state.tensor, file},
        !state.whole);
  }
}

// Args of other weights would cut these wrongly later.
void LegacyAssembler::check_sizes(const Whole& whole,
                                  const std::string& file) const {
  const Tensor& tensor = whole.tensor;
  if (tensor.kind != Kind::model || !is_word_embedding(tensor.name) ||
      tensor.shape.size() != 2)
    return;
  const auto check = [&](uint64_t found, const std::optional<uint64_t>& said,
                         const char* what) {
    if (!said || *said == found) return;
    throw input_error({file, printable(tensor.name)},
                      "has shape {} over all ranks, args.{} is {}",
                      to_string(tensor.shape), what, *said)
        .with_hint("the args are those of another model");
  };
  check(tensor.shape[0], facts_.padded_vocab_size, "padded_vocab_size");
  if (facts_.vocab_size && *facts_.vocab_size > tensor.shape[0])
    check(tensor.shape[0], facts_.vocab_size, "vocab_size");
}

void LegacyAssembler::check_seen(const Whole& whole) const {
  std::vector<size_t> missing;
  for (size_t i = 0; i < whole.seen.size(); ++i)
    if (!whole.seen[i]) missing.push_back(i);
  if (whole.begun && missing.empty()) return;
  const std::string name = printable(whole.tensor.name);
  const LegacyName parsed = parse_legacy_name(
      whole.tensor.param.empty() ? whole.tensor.name : whole.tensor.param);
  if (parsed.is_expert && !whole.begun)
    throw missing_error(
        {catalog_.path, name},
        "is in none of the files: no directory of expert-parallel rank {}",
        parsed.expert && numbering_.experts_per_rank()
            ? parsed.expert->value / numbering_.experts_per_rank()
            : 0)
        .with_hint("copy the missing mp_rank_… directories");
  throw missing_error({catalog_.path, name},
                      "the parts of {}tensor-parallel ranks {} of {} are "
                      "missing",
                      parsed.is_expert ? "expert " : "",
                      fmt::join(missing, ", "), whole.ranks)
      .with_hint(
          "copy the missing mp_rank_… directories; some writers left out "
          "those of ranks that share experts with others");
}

void LegacyAssembler::finish() {
  if (!order_unknown_.empty())
    catalog_.problems.push_back(
        warning(std::string(kRowOrder), {catalog_.path, order_unknown_},
                "the order of its rows depends on the number of heads "
                "(checkpoint_version {}), which no args say",
                catalog_.version));
  for (Whole& whole : wholes_) {
    check_seen(whole);
    check_sizes(whole, whole.first);
    // A number without dimensions can't be a slice.
    if (whole.tensor.tp.state == TpRule::State::kUnknown && whole.ranks > 1 &&
        !whole.tensor.shape.empty())
      set_aside(whole.tensor, whole.slots, catalog_);
    catalog_.tensors.push_back(std::move(whole.tensor));
  }
}

}  // namespace ckpt::megatron
