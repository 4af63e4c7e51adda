// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/keys.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lib/text/number.h"
#include "lib/text/words.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kOptimizer = "optimizer.state.";
constexpr std::string_view kChained = "chained_";
// Where the model's own names begin, whatever wraps it.
constexpr std::string_view kRoots[] = {"embedding", "encoder", "decoder",
                                       "output_layer", "mtp"};
// What BertModel, T5Model and Bridge's Gemma 4 have beside them. Roots by two
// words, as other people's models have an lm_head, too.
constexpr std::string_view kHeads =
    "lm_head.dense. lm_head.layer_norm. lm_head.output_layer. pooler.dense. "
    "binary_head. encoder_relative_pos_emb. decoder_relative_pos_emb. "
    "per_layer_embedding. per_layer_model_proj. per_layer_proj_norm.";

// Modules beside the language model, in Megatron's own models and in
// Megatron-Bridge's.
constexpr std::string_view kTowers =
    "vision_model vision_tower visual multi_modal_projector "
    "multimodal_projector vision_projection audio_model audio_tower "
    "embed_vision embed_audio";

// Of layers, experts, ranks: one more never overflows.
constexpr uint64_t kMostNumber = uint64_t{1} << 40;

// As Python prints it: without leading zeros.
std::optional<uint64_t> number(std::string_view text) {
  return text::number(text, kMostNumber, text::Zeros::kRefused);
}

// The component at `at`, without its dot.
std::string_view component(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  return text.substr(at, text.find('.', at) - at);
}

// Where component `word` begins, at or after `at`; npos if absent.
size_t find_component(std::string_view text, std::string_view word, size_t at) {
  for (size_t found = at; (found = text.find(word, found)) != text.npos;
       ++found) {
    const size_t end = found + word.size();
    if ((found == 0 || text[found - 1] == '.') &&
        (end == text.size() || text[end] == '.'))
      return found;
  }
  return text.npos;
}

bool begins_head(std::string_view name) {
  return text::starts_with_any(name, kHeads);
}

// Where the first root is; a tower's parts may be called like roots.
void parse_root(Key& key) {
  size_t begin = 0;
  for (size_t at = 0; at < key.model.size();) {
    const std::string_view word = component(key.model, at);
    key.rooted = std::ranges::find(kRoots, word) != std::end(kRoots) ||
                 begins_head(key.model.substr(at));
    key.tower = text::has_word(kTowers, word);
    begin = at;
    if (key.rooted || key.tower) break;
    at += word.size() + 1;
  }
  if (!key.rooted && !key.tower) begin = 0;
  key.prefix = key.model.substr(0, begin);
  key.name = key.model.substr(begin);
}

void parse_layer(Key& key) {
  const size_t at = find_component(key.name, "layers", 0);
  if (at == key.name.npos) return;
  const std::string_view next = component(key.name, at + 7);
  key.layer = number(next);
  key.layer_axis = !key.layer && !next.empty();
}

// The 7 in weight7 of a grouped linear layer.
std::optional<uint64_t> grouped_number(std::string_view rest) {
  if (!rest.starts_with("linear_fc")) return std::nullopt;
  const std::string_view last = rest.substr(rest.rfind('.') + 1);
  for (const std::string_view word : {"weight", "bias"})
    if (last.starts_with(word)) return number(last.substr(word.size()));
  return std::nullopt;
}

void parse_expert(Key& key) {
  size_t at = find_component(key.name, "local_experts", 0);
  if (at != key.name.npos) {
    key.expert = number(component(key.name, at + 14));
    return;
  }
  at = find_component(key.name, "experts", 0);
  if (at == key.name.npos) return;
  at += 8;
  if (component(key.name, at) == "experts") at += 8;
  if (at >= key.name.size()) return;
  key.expert = number(component(key.name, at));
  if (!key.expert) key.expert = grouped_number(key.name.substr(at));
  // weight1 and weight2 of the old fused layer hold several experts in their
  // own order: not an axis.
  key.expert_axis =
      !key.expert && !component(key.name, at).starts_with("weight");
}

std::optional<std::vector<uint64_t>> numbers(std::string_view text) {
  std::vector<uint64_t> all;
  while (true) {
    const size_t dot = text.find('.');
    const auto value = number(text.substr(0, dot));
    if (!value) return std::nullopt;
    all.push_back(*value);
    if (dot == text.npos) return all;
    text.remove_prefix(dot + 1);
  }
}

}  // namespace

Key parse_key(std::string_view text) {
  Key key;
  size_t at = 0;
  if (text.starts_with(kChained)) {
    const size_t dot = text.find('.');
    if (dot != text.npos &&
        number(text.substr(kChained.size(), dot - kChained.size())))
      at = dot + 1;
  }
  std::string_view rest = text.substr(at);
  if (rest.starts_with(kOptimizer)) {
    const std::string_view state = component(rest, kOptimizer.size());
    const size_t begin = kOptimizer.size() + state.size() + 1;
    if (!state.empty() && begin < rest.size()) {
      key.chain = text.substr(0, at);
      key.state = state;
      rest.remove_prefix(begin);
    }
  }
  key.model = key.state.empty() ? text : rest;
  parse_root(key);
  parse_layer(key);
  parse_expert(key);
  return key;
}

KeyList keys_of(const std::vector<Tensor>& tensors) {
  KeyList keys;
  keys.reserve(tensors.size());
  for (const Tensor& tensor : tensors) keys.push_back(parse_key(tensor.name));
  return keys;
}

std::string layer_prefix(const Key& key) {
  if (!key.layer) return {};
  const size_t at = find_component(key.model, "layers", key.prefix.size());
  const size_t dot = key.model.find('.', at + 7);
  return std::string(key.model.substr(0, dot + 1));
}

std::string layer_prefix(std::string_view text) {
  return layer_prefix(parse_key(text));
}

bool replace_front(std::string& text, std::string_view from,
                   std::string_view to) {
  if (!text.starts_with(from)) return false;
  text = std::string(to) + text.substr(from.size());
  return true;
}

bool is_bucket_key(std::string_view text) {
  const size_t group = text.find("optimizer.distributed.dp_group_idx_");
  const size_t buffer = text.find(".gbuf_idx_", group);
  return group != text.npos && buffer != text.npos &&
         text.find(".bucket_idx_", buffer) != text.npos;
}

std::optional<ObjectKey> parse_object_key(std::string_view text) {
  const size_t slash = text.rfind('/');
  if (slash == text.npos) return std::nullopt;
  std::string_view rest = text.substr(slash + 1);
  if (!rest.starts_with("shard_")) return std::nullopt;
  rest.remove_prefix(6);
  const size_t bar = rest.find('_');
  if (bar == rest.npos) return std::nullopt;
  auto offset = numbers(rest.substr(0, bar));
  auto grid = numbers(rest.substr(bar + 1));
  if (!offset || !grid || offset->size() != grid->size()) return std::nullopt;
  for (size_t i = 0; i < grid->size(); ++i)
    if ((*offset)[i] >= (*grid)[i]) return std::nullopt;
  return ObjectKey{text.substr(0, slash), std::move(*offset), std::move(*grid)};
}

std::string object_key(std::string_view key, std::span<const uint64_t> offset,
                       std::span<const uint64_t> grid) {
  return fmt::format("{}/shard_{}_{}", key, fmt::join(offset, "."),
                     fmt::join(grid, "."));
}

Where place_of(const Key& key) {
  if (key.tower) return Where::kAnywhere;
  if (key.name.starts_with("embedding.") ||
      key.name.starts_with("per_layer_") ||
      key.name.starts_with("encoder_relative_pos_emb.") ||
      key.name.starts_with("decoder_relative_pos_emb."))
    return Where::kFirst;
  if (key.name.starts_with("mtp.") || key.name.starts_with("output_layer.") ||
      key.name.starts_with("decoder.final_") ||
      key.name.starts_with("encoder.final_") || begins_head(key.name))
    return Where::kLast;
  return key.layer || key.layer_axis ? Where::kLayer : Where::kAnywhere;
}

}  // namespace ckpt::megatron
