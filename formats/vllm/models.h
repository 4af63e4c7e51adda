// Models of which it is known how vLLM arranges them.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "ckpt/catalog.h"
#include "formats/vllm/config.h"

namespace ckpt::vllm {

inline constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
inline constexpr std::string_view kHead = "lm_head.weight";

struct Model {
  std::string_view type;
  bool head;  // a tied head is a parameter of its own name
  bool tied;  // if config.json does not say
};

// Throws unfaithful_error for another model, a quantized one, and without a
// config.json.
const Model& model_of(const Catalog& source,
                      const std::optional<Config>& config);

// What is fused, in that order.
struct Fusion {
  std::string_view to;
  std::span<const std::string_view> from;
};
std::span<const Fusion> fusions();

}  // namespace ckpt::vllm
