// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/nanotron/ranks.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs::nanotron {
namespace {

using text::printable;

constexpr const char* kElse =
    "--to safetensors or dcp keeps model and optimizer by name";
constexpr std::string_view kEmbedding =
    "model.token_position_embeddings.pp_block.token_embedding.weight";
constexpr std::string_view kLayers = "model.decoder.";
constexpr std::string_view kNorm = "model.final_layer_norm.pp_block.";
constexpr std::string_view kHead = "model.lm_head.pp_block.weight";
constexpr std::string_view kGateUp = ".pp_block.mlp.gate_up_proj.weight";
constexpr uint64_t kMaxLayers = 100'000;

// "3" of "model.decoder.3.pp_block.…".
std::optional<uint64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const auto number = text::take_number(name);
  if (!number || *number >= kMaxLayers || !name.starts_with(".pp_block."))
    return std::nullopt;
  return number;
}

}  // namespace

Ranks::Ranks(const std::string& folder, const Step& step,
             const Topology& topology)
    : folder_(folder),
      step_(step),
      tp_(topology.tp),
      dp_(topology.dp),
      pp_(topology.pp),
      moves_(topology.pp != step.catalog.topology.pp) {
  find_cuts();
  if (moves_ && pp_ > 1) find_stages();
}

void Ranks::find_cuts() {
  for (const auto& [name, weight] : step_.weights) {
    if (!weight.sharded) continue;
    const std::string path = io::join(folder_, weight.file);
    const auto cut = find_cut(weight.tensor.shape, weight.shares);
    if (!cut)
      throw unfaithful_error({path, printable(name)},
                             "is cut in a way that no layer of nanotron cuts")
          .with_hint(kElse);
    for (const uint64_t chunk : cut->chunks)
      if (chunk % tp_ != 0)
        throw unfaithful_error(
            {path, printable(name)},
            "dimension {} has {} of {}, which do not divide into {}", cut->dim,
            cut->chunks.size() == 1 ? "a length" : "a chunk", chunk,
            text::counted(tp_, "rank"))
            .with_hint("--tp takes a divisor of it");
    cuts_.emplace(name, *cut);
  }
}

// The blocks: 0 the embedding, 1 … the layers, then the norm and the head.
uint64_t Ranks::block_of(const std::string& name) const {
  const uint64_t layers = stages_.size() - 3;
  if (name == kEmbedding) return 0;
  if (name.starts_with(kNorm)) return layers + 1;
  if (name == kHead) return layers + 2;
  const auto layer = layer_of(name);
  if (!layer || *layer >= layers)
    throw unfaithful_error({folder_, printable(name)},
                           "is of no block of a Llama or Qwen 2 of nanotron: "
                           "which stage has it is not known")
        .with_hint("--pp 1 puts all stages into one");
  return *layer + 1;
}

void Ranks::find_stages() {
  const auto embedding = step_.weights.find(std::string(kEmbedding));
  const auto head = step_.weights.find(std::string(kHead));
  uint64_t layers = 0, width = 0;
  for (const auto& [name, weight] : step_.weights) {
    const auto layer = layer_of(name);
    if (!layer) continue;
    layers = std::max(layers, *layer + 1);
    if (name.ends_with(kGateUp)) width = weight.tensor.shape[0] / 2;
  }
  if (embedding == step_.weights.end() || head == step_.weights.end() ||
      embedding->second.tensor.shape.size() != 2 || width == 0)
    throw unfaithful_error(
        {folder_, {}},
        "is not a Llama or Qwen 2 of nanotron with a head of "
        "its own: how its blocks go into {} stages is not "
        "known",
        pp_)
        .with_hint("--pp 1 puts all stages into one");
  const auto h = static_cast<double>(embedding->second.tensor.shape[1]);
  const auto v = static_cast<double>(head->second.tensor.shape[0]);
  const double each = 4 * h * h + 3 * static_cast<double>(width) * h;
  const double all = each * static_cast<double>(layers) + v * h;
  const auto ranks = static_cast<double>(pp_);
  double sum = 0;
  uint64_t stage = 0;
  for (uint64_t block = 0; block < layers + 3; ++block) {
    stages_.push_back(stage);
    if (block == layers + 2)
      sum += v * h;
    else if (block > 0 && block <= layers)
      sum += each;
    if (sum > all * (static_cast<double>(stage + 1) / ranks)) ++stage;
  }
  if (stages_.back() + 1 < pp_)
    throw unfaithful_error(
        {folder_, {}}, "has {}, which nanotron puts into {} of {} stages",
        text::counted(layers, "layer"), stages_.back() + 1, pp_)
        .with_hint("--pp takes fewer");
  for (const auto& [name, weight] : step_.weights) block_of(name);
}

uint64_t Ranks::stage(const Weight& weight) const {
  if (!moves_) return weight.stage;
  return stages_.empty() ? 0 : stages_[block_of(weight.tensor.name)];
}

std::optional<Share> Ranks::share(const Weight& weight, uint64_t tp) const {
  const auto cut = cuts_.find(weight.tensor.name);
  if (cut != cuts_.end())
    return share_of(cut->second, weight.tensor.shape, tp, tp_);
  if (tp > 0 && of_first_alone(weight)) return std::nullopt;
  return all_of(weight.tensor.shape);
}

const Weight& Ranks::weight(const std::string& name) const {
  const auto found = step_.weights.find(name);
  if (found == step_.weights.end())
    throw unfaithful_error({folder_, printable(name)},
                           "is in the optimizer, and not in model/");
  return found->second;
}

bool Ranks::of_first_alone(const Weight& weight) const {
  constexpr std::string_view kBias = "bias";
  std::string name = weight.tensor.name;
  if (!name.ends_with("." + std::string(kBias))) return false;
  name.replace(name.size() - kBias.size(), kBias.size(), "weight");
  const auto cut = cuts_.find(name);
  return cut != cuts_.end() && cut->second.dim == 1;
}

}  // namespace ckpt::runs::nanotron
