// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/names.h"

#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

constexpr uint64_t kMostNumber = uint64_t{1} << 32;

std::optional<LegacyName::Number> number_at(std::string_view text, size_t at,
                                            bool to_end) {
  if (at > text.size()) return std::nullopt;
  std::string_view rest = text.substr(at);
  const auto value =
      text::take_number(rest, kMostNumber, text::Zeros::kRefused);
  if (!value || (to_end ? !rest.empty() : !rest.starts_with('.')))
    return std::nullopt;
  return LegacyName::Number{at, text.size() - rest.size() - at, *value};
}

// A component's first byte, or npos: "layers." at the start or after a dot.
size_t find_word(std::string_view text, std::string_view word, size_t from) {
  for (size_t at = from; (at = text.find(word, at)) != text.npos; ++at)
    if (at == 0 || text[at - 1] == '.') return at;
  return text.npos;
}

std::optional<LegacyName::Number> expert_number(std::string_view name) {
  constexpr std::string_view kLocal = "local_experts.";
  const size_t local = find_word(name, kLocal, 0);
  if (local != name.npos) return number_at(name, local + kLocal.size(), false);
  for (const std::string_view linear : {"linear_fc1.", "linear_fc2."}) {
    const size_t at = find_word(name, linear, 0);
    if (at == name.npos) continue;
    for (const std::string_view word : {"weight", "bias"})
      if (name.substr(at + linear.size()).starts_with(word))
        return number_at(name, at + linear.size() + word.size(), true);
  }
  return std::nullopt;
}

std::string_view last_of(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

LegacyName parse_legacy_name(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  LegacyName parsed;
  const bool mtp = find_word(name, "mtp.", 0) != name.npos;
  const size_t at = find_word(name, kLayers, 0);
  if (at != name.npos && !mtp) {
    parsed.layer = number_at(name, at + kLayers.size(), false);
    if (parsed.layer) parsed.stack = name.substr(0, at + kLayers.size());
  }
  parsed.is_expert = name.find(".mlp.experts.") != name.npos ||
                     find_word(name, "local_experts.", 0) != name.npos;
  if (parsed.is_expert) parsed.expert = expert_number(name);
  return parsed;
}

std::string with_numbers(std::string_view name, const LegacyName& parsed,
                         uint64_t layer, uint64_t expert) {
  std::string text(name);
  // From the back, so that the first position stays valid.
  if (parsed.expert)
    text.replace(parsed.expert->at, parsed.expert->size,
                 std::to_string(expert));
  if (parsed.layer)
    text.replace(parsed.layer->at, parsed.layer->size, std::to_string(layer));
  return text;
}

bool is_legacy_buffer(std::string_view name) {
  for (const std::string_view word :
       {"expert_bias", "local_tokens_per_expert", "global_tokens_per_expert",
        "inv_freq", "masked_bias"})
    if (last_of(name) == word) return true;
  return false;
}

bool spares_decay(std::string_view name, size_t rank) {
  return rank == 1 || name.ends_with(".bias");
}

bool is_word_embedding(std::string_view name) {
  return find_word(name, "word_embeddings.weight", 0) != name.npos &&
         name.ends_with("word_embeddings.weight");
}

bool is_vocabulary(std::string_view name) {
  return is_word_embedding(name) || name == "language_model.lm_head" ||
         (name.ends_with("output_layer.weight") &&
          find_word(name, "output_layer.weight", 0) != name.npos);
}

bool is_extra_state(std::string_view name) {
  return last_of(name) == "_extra_state";
}

std::optional<std::string> embedding_of_copy(std::string_view name) {
  constexpr std::string_view kHead = "word_embeddings_for_head.weight";
  constexpr std::string_view kOutput = "output_layer.weight";
  if (name == kHead) return "language_model.embedding.word_embeddings.weight";
  const size_t at = find_word(name, kOutput, 0);
  if (at == name.npos || !name.ends_with(kOutput)) return std::nullopt;
  return std::string(name.substr(0, at)) + "embedding.word_embeddings.weight";
}

}  // namespace ckpt::megatron
