// SPDX-License-Identifier: Apache-2.0
#include "api/edit/blocks.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "api/edit/layer_place.h"
#include "ckpt/error.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/names.h"
#include "formats/modelopt/owners.h"

namespace ckpt::library {
namespace {

using modelopt::Part;
using modelopt::Place;

// How dialects other than Hugging Face's name what is in no block: the last
// words of the name.
struct Known {
  std::string_view ending;
  Part part;
};
constexpr auto kKnown = std::to_array<Known>({
    {"word_embeddings.weight", Part::kEmbedding},
    {"tok_embeddings.weight", Part::kEmbedding},
    {"decoder_frontend.embed.weight", Part::kEmbedding},
    {"embeddings.weight", Part::kEmbedding},
    {"wte.weight", Part::kEmbedding},
    {"embed_in.weight", Part::kEmbedding},
    {"decoder.final_layernorm.weight", Part::kNorm},
    {"decoder.layer_norm.weight", Part::kNorm},
    {"lm_head.norm.weight", Part::kNorm},
    {"transformer.ln_f.weight", Part::kNorm},
    {"transformer.ln_f.bias", Part::kNorm},
    {"output_layer.weight", Part::kHead},
    {"final_proj.weight", Part::kHead},
    {"lm_head.w_out.weight", Part::kHead},
    {"embed_out.weight", Part::kHead},
    {"lm_head.bias", Part::kHead},
});

class Parts {
 public:
  explicit Parts(const Catalog& catalog)
      : naming_(modelopt::naming_of(catalog)) {
    named_ = std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
      return naming_.place(parameter(tensor)).part == Part::kBlock;
    });
  }

  Place place(const Tensor& tensor) const {
    const std::string_view name = parameter(tensor);
    const Place place = naming_.place(name);
    if (named_ || place.part != Part::kOther) return place;
    if (const auto layer = layer_of(tensor)) return {Part::kBlock, *layer, {}};
    if (name == "norm.weight") return {Part::kNorm, 0, {}};
    if (name == "output.weight") return {Part::kHead, 0, {}};
    for (const Known& known : kKnown)
      if (name.ends_with(known.ending)) return {known.part, 0, {}};
    return {};
  }

 private:
  // Optimizer state goes with its parameter.
  static std::string_view parameter(const Tensor& tensor) {
    return tensor.param.empty() ? tensor.name : tensor.param;
  }

  const modelopt::Naming& naming_;
  bool named_ = false;  // by the naming: other numbers are not blocks
};

uint64_t count_blocks(const Catalog& catalog, const Parts& parts) {
  uint64_t count = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (stacked_layers(catalog, tensor))
      throw unfaithful_error({catalog.path, tensor.name},
                             "--blocks: this tensor stacks its layers")
          .with_hint("--layers takes rows of stacked layers");
    const Place place = parts.place(tensor);
    if (place.part == Part::kBlock)
      count = std::max<uint64_t>(count, uint64_t{place.block} + 1);
  }
  if (count == 0)
    throw unfaithful_error({catalog.path, {}},
                           "--blocks: no tensor name has a block's number")
        .with_hint("select by name with --keys instead");
  return count;
}

}  // namespace

void check_blocks(const std::string& blocks) { modelopt::parse_ranks(blocks); }

std::function<bool(const Tensor&)> owned_blocks(const Catalog& catalog,
                                                const std::string& blocks) {
  const auto parts = std::make_shared<Parts>(catalog);
  const auto config = modelopt::config_of(catalog);
  const uint64_t count = std::max(
      count_blocks(catalog, *parts),
      modelopt::block_count(catalog, modelopt::naming_of(catalog), config));
  const auto owners = modelopt::Owners::given(blocks, count);
  const bool tied = config && config->tied;
  const bool headless =
      std::ranges::none_of(catalog.tensors, [&](const Tensor& tensor) {
        return parts->place(tensor).part == Part::kHead;
      });
  return [parts, owners, tied, headless](const Tensor& tensor) {
    Place place = parts->place(tensor);
    // If no head is stored, the embedding is the head, too.
    if (tied && headless && place.part == Part::kEmbedding)
      place.part = Part::kHead;
    return !owners.of(place, tied).empty();
  };
}

}  // namespace ckpt::library
