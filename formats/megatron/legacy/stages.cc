// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/model/keys.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using Keys = std::vector<LegacyKey>;

struct Stack {
  std::string name;
  uint64_t layers = 0;
};

Stack only_stack(const Catalog& source, const Keys& keys, uint32_t pp) {
  Stack stack;
  std::set<std::string> names;
  for (const LegacyKey& key : keys) {
    const LegacyName name = parse_legacy_name(key.name);
    if (!name.layer) continue;
    names.insert(name.stack);
    stack.name = name.stack;
    stack.layers = std::max(stack.layers, name.layer->value + 1);
  }
  if (names.size() > 1 && pp > 1)
    throw unfaithful_error({source.path, {}},
                           "{} stacks of layers ({}): how {} pipeline stages "
                           "share them is not known",
                           names.size(), fmt::join(names, ", "), pp)
        .with_hint("keep pp as it is, or use --pp 1");
  if (stack.layers < pp)
    throw unfaithful_error({source.path, {}},
                           "{} layers for {} pipeline stages", stack.layers, pp)
        .with_hint(fmt::format("--pp {} is the most", stack.layers));
  return stack;
}

std::string divisors(uint64_t layers) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= layers && sizes.size() < 12; ++size)
    if (layers % size == 0) sizes.push_back(size);
  return fmt::format("sizes that divide {} layers: {}", layers,
                     fmt::join(sizes, ", "));
}

bool is_embedding(const LegacyKey& key) {
  return key.name.find("embedding.") != std::string::npos;
}

bool is_mtp(const LegacyKey& key) {
  return key.name.starts_with("mtp.") ||
         key.name.find(".mtp.") != std::string::npos;
}

// In every stage, whatever it holds.
bool is_everywhere(const LegacyKey& key) {
  return key.name.find("rotary_pos_emb.") != std::string::npos;
}

// Adds the last stage's copy of the embedding, after the final norm.
void add_copy(Keys& keys, const LegacyKey& embedding) {
  constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";
  LegacyKey copy = embedding;
  copy.tensor = embedding.name;
  if (embedding.path.size() > 1) {
    copy.path = {"word_embeddings_for_head", "weight"};
    copy.name = "word_embeddings_for_head.weight";
    keys.push_back(std::move(copy));
    return;
  }
  copy.name =
      embedding.name.substr(0, embedding.name.size() - kEmbedding.size()) +
      "output_layer.weight";
  copy.path = {copy.name};
  // Before the module's _extra_state, as in the module.
  const auto at = std::ranges::find_if(keys, [](const LegacyKey& key) {
    return key.name.ends_with("output_layer._extra_state");
  });
  keys.insert(at, std::move(copy));
}

uint64_t prediction_layers(const Keys& keys) {
  uint64_t count = 0;
  for (const LegacyKey& key : keys)
    if (const Key parsed = parse_key(key.name);
        parsed.name.starts_with("mtp.layers.") && parsed.layer)
      count = std::max(count, *parsed.layer + 1);
  return count;
}

// The requested split.
StageSplit wanted_split(const Catalog& source, const Stack& stack,
                        const Keys& keys, uint32_t pp, uint32_t vpp,
                        const std::vector<uint64_t>& wanted) {
  uint64_t sum = 0;
  for (const uint64_t layers : wanted)
    sum = checked_add(sum, layers).value_or(UINT64_MAX);
  if (sum != stack.layers || wanted.size() != uint64_t{pp} * vpp)
    throw unfaithful_error({source.path, {}},
                           "--pp-layout {} has {} layers in {} parts, the "
                           "model has {} for pp={}{}",
                           fmt::join(wanted, ","), sum, wanted.size(),
                           stack.layers, pp,
                           vpp > 1 ? fmt::format(" vpp={}", vpp) : "")
        .with_hint("a number for each stage (with --vpp: for each chunk)");
  StageSplit split{.vpp = vpp, .layers = wanted};
  describe_stages(split, prediction_layers(keys));
  return split;
}

}  // namespace

StageSplit split_stages(const Catalog& source, const Facts& facts,
                        const Keys& keys, uint32_t pp, uint32_t vpp,
                        std::string& assumption,
                        const std::vector<uint64_t>& wanted) {
  const Stack stack = only_stack(source, keys, pp);
  if (!wanted.empty())
    return wanted_split(source, stack, keys, pp, std::max<uint32_t>(1, vpp),
                        wanted);
  const uint64_t layers = stack.layers;
  StageSplit split;
  if (pp > 1 && vpp > 1 && layers % (uint64_t{pp} * vpp) == 0) split.vpp = vpp;
  const uint64_t chunks = uint64_t{pp} * split.vpp;
  if (vpp > 1 && split.vpp == 1)
    assumption = fmt::format(
        "pipeline: {} virtual stages become one, since {}", vpp,
        pp == 1 ? "there is one stage"
                : fmt::format("{} layers are not {} x {} equal parts", layers,
                              pp, vpp));
  split.layers.assign(chunks, layers / chunks);
  if (layers % chunks == 0) return split;

  // All stages except the first are equal.
  uint64_t each = (layers + pp - 1) / pp;
  if (each * (pp - 1) >= layers) each = layers / pp;
  const bool old = stack.name.starts_with("language_model.");
  if (old || !facts.any || each == 0)
    throw unfaithful_error({source.path, {}},
                           "{} layers can't be shared by {} equal pipeline "
                           "stages",
                           layers, pp)
        .with_hint(divisors(layers));
  split.layers.assign(pp, each);
  split.layers[0] = layers - each * (pp - 1);
  split.first_stage = split.layers[0];
  assumption += fmt::format(
      "{}pipeline: {} layers on the first stage, {} on each other one "
      "(decoder_first_pipeline_num_layers)",
      assumption.empty() ? "" : "; ", split.layers[0], each);
  return split;
}

std::vector<Keys> fill_stages(const Keys& keys, const StageSplit& split,
                              uint32_t pp, bool tied) {
  std::vector<uint64_t> ends;
  for (const uint64_t layers : split.layers)
    ends.push_back(layers + (ends.empty() ? 0 : ends.back()));
  std::vector<Keys> chunks(split.layers.size());
  bool behind = false;  // after the layers
  const bool mtp = std::ranges::any_of(keys, is_mtp);
  for (const LegacyKey& key : keys) {
    const LegacyName name = parse_legacy_name(key.name);
    if (name.layer) {
      behind = true;
      const auto at = std::ranges::upper_bound(ends, name.layer->value);
      chunks[static_cast<size_t>(at - ends.begin())].push_back(key);
    } else if (is_everywhere(key)) {
      for (Keys& chunk : chunks) chunk.push_back(key);
    } else {
      const bool first = is_embedding(key) || !behind;
      (first ? chunks.front() : chunks.back()).push_back(key);
    }
  }
  if (pp == 1) return chunks;
  // Prediction layers after the last one have their own embedding.
  Keys copies;
  const LegacyKey* embedding = nullptr;
  for (const LegacyKey& key : chunks.front()) {
    if (mtp && is_embedding(key)) copies.push_back(key);
    if (is_word_embedding(key.name)) embedding = &key;
  }
  Keys& last = chunks.back();
  last.insert(last.begin(), copies.begin(), copies.end());
  if (tied && embedding) add_copy(last, *embedding);
  return chunks;
}

}  // namespace ckpt::megatron
