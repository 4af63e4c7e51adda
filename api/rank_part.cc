// SPDX-License-Identifier: Apache-2.0
#include "api/rank_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/edit/experts.h"
#include "api/edit/layer_place.h"
#include "ckpt/error.h"
#include "convert/config/dialects.h"
#include "convert/config/values.h"
#include "formats/rank_rules.h"
#include "formats/traits.h"
#include "lib/text/words.h"
#include "models/rules.h"
#include "models/view.h"

namespace ckpt::library {
namespace {

using formats::is_tower;

// Optimizer state goes with its parameter.
std::string_view name_of(const Tensor& tensor) {
  return tensor.param.empty() ? tensor.name : tensor.param;
}

bool has_part(std::string_view name, std::string_view word) {
  for (size_t at = name.find(word); at != name.npos;
       at = name.find(word, at + 1))
    if (const size_t end = at + word.size();
        (at == 0 || name[at - 1] == '.') &&
        (end == name.size() || name[end] == '.'))
      return true;
  return false;
}

bool has_any(std::string_view name, std::string_view words) {
  return text::any_word(
      words, [&](std::string_view word) { return has_part(name, word); });
}

bool is_prediction(std::string_view name) {
  constexpr std::string_view kParts = "mtp mtp_layers";
  return has_any(name, kParts);
}

bool is_embedding(std::string_view name) {
  constexpr std::string_view kParts =
      "embed_tokens word_embeddings position_embeddings tok_embeddings wte "
      "wpe embed_in embeddings embedding encoder_frontend decoder_frontend "
      "word_embeddings_layernorm embed_positions tokentype_embeddings";
  return has_any(name, kParts);
}

bool is_output(std::string_view name) {
  constexpr std::string_view kParts =
      "lm_head output_layer embed_out final_proj w_out output";
  return has_any(name, kParts);
}

// The tokens' rows, which also end a model without an output layer.
bool is_token_embedding(std::string_view name) {
  constexpr std::string_view kParts =
      "embed_tokens word_embeddings tok_embeddings wte embed_in embeddings "
      "decoder_frontend";
  return has_any(name, kParts) && name.ends_with("weight") &&
         !has_part(name, "position_embeddings");
}

class Stages {
 public:
  Stages(const Catalog& catalog, uint32_t stages) : stages_(stages) {
    for (const Tensor& tensor : catalog.tensors) {
      const std::string_view name = name_of(tensor);
      if (is_output(name)) has_output_ = true;
      if (is_tower(name) || is_prediction(name)) continue;
      const auto layer = layer_of(name);
      const uint64_t rows = stacked_layers(catalog, tensor);
      if (!layer && rows == 0) continue;
      uint64_t& count = layers_[std::string(stack(tensor))];
      count = std::max<uint64_t>(count, layer ? *layer + uint64_t{1} : rows);
    }
    if (!layers_.empty() && total() < stages)
      throw unfaithful_error({catalog.path, {}},
                             "{} pipeline stages for {} layers", stages,
                             total())
          .with_hint(fmt::format("--pp {} is the most", total()));
  }

  bool holds(const Tensor& tensor, uint32_t stage) const {
    const std::string_view name = name_of(tensor);
    const uint32_t last = stages_ - 1;
    if (is_tower(name)) return stage == 0;  // at the input
    if (is_prediction(name)) return stage == last;
    if (const auto layer = layer_of(name))
      return stage_of(before(tensor) + *layer) == stage;
    if (is_output(name)) return stage == last;
    if (is_embedding(name))
      return stage == 0 ||
             (stage == last && !has_output_ && is_token_embedding(name));
    // An encoder's norm is with its last layer.
    if (has_part(name, "encoder") && layers_.size() > 1)
      return stage == stage_of(layers_.at("encoder") - 1);
    return stage == last;
  }

  // Rows [first, second) of a tensor that stacks layers.
  std::pair<uint64_t, uint64_t> rows(const Tensor& tensor,
                                     uint32_t stage) const {
    const uint64_t first = before(tensor);
    const uint64_t rows = tensor.shape[0];
    uint64_t begin = rows, end = 0;
    for (uint64_t row = 0; row < rows; ++row)
      if (stage_of(first + row) == stage) {
        begin = std::min(begin, row);
        end = row + 1;
      }
    return {std::min(begin, end), end};
  }

 private:
  // An encoder's layers come before a decoder's; all else is one stack.
  static std::string_view stack(const Tensor& tensor) {
    const std::string_view name = name_of(tensor);
    const auto place = layer_place(name);
    return has_part(place ? name.substr(0, place->begin - 1) : name, "encoder")
               ? "encoder"
               : "decoder";
  }
  uint64_t total() const {
    uint64_t sum = 0;
    for (const auto& [name, count] : layers_) sum += count;
    return sum;
  }
  // Layers of the model that come before the tensor's own stack.
  uint64_t before(const Tensor& tensor) const {
    const auto encoder = layers_.find("encoder");
    return encoder == layers_.end() || stack(tensor) == "encoder"
               ? 0
               : encoder->second;
  }
  // The stage p with layer in [p * L / PP, (p + 1) * L / PP).
  uint32_t stage_of(uint64_t layer) const {
    const uint64_t all = std::max<uint64_t>(total(), 1);
    return static_cast<uint32_t>(
        std::min<uint64_t>(((layer + 1) * stages_ - 1) / all, stages_ - 1));
  }

  uint32_t stages_;
  bool has_output_ = false;
  std::map<std::string, uint64_t, std::less<>> layers_;
};

// A run of a dimension that stacks things.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
};

void narrow(Tensor& tensor, uint32_t axis, const Span& span) {
  if (span.begin == 0 && span.end == tensor.shape[axis]) return;
  families::View::of(tensor)
      .slice(axis, span.begin, span.end - span.begin)
      .into(tensor);
}

class Experts {
 public:
  Experts(const Catalog& catalog, uint32_t ranks) : ranks_(ranks) {
    if (ranks == 1) return;
    for (const Tensor& tensor : catalog.tensors) {
      const ExpertName name = parse_expert_name(name_of(tensor));
      if (name.what == ExpertName::What::kNumbered)
        count_ = std::max(count_, name.expert + 1);
      if (const auto axis = axis_of(catalog, tensor, name))
        count_ = std::max(count_, tensor.shape[*axis]);
    }
    if (count_ == 0 || count_ % ranks != 0)
      throw unfaithful_error({catalog.path, {}},
                             "{} experts over {} expert-parallel ranks", count_,
                             ranks);
  }

  // False if it belongs to another rank. Tensors that stack experts are cut to
  // this rank's.
  bool take(const Catalog& catalog, Tensor& tensor, uint32_t rank) const {
    if (ranks_ == 1) return true;
    const ExpertName name = parse_expert_name(name_of(tensor));
    const uint64_t each = count_ / ranks_;
    if (name.what == ExpertName::What::kNumbered)
      return name.expert / each == rank;
    const auto axis = axis_of(catalog, tensor, name);
    if (!axis) return true;
    if (tensor.shape[*axis] % ranks_ != 0)
      throw unfaithful_error({catalog.path, tensor.name},
                             "dimension {} of {} is not a multiple of ep {}",
                             *axis, to_string(tensor.shape), ranks_);
    const uint64_t rows = tensor.shape[*axis] / ranks_;
    narrow(tensor, *axis, {rank * rows, (rank + 1) * rows});
    return true;
  }

 private:
  // [experts, …], behind the layers where these are stacked too.
  static std::optional<uint32_t> axis_of(const Catalog& catalog,
                                         const Tensor& tensor,
                                         const ExpertName& name) {
    if (name.what != ExpertName::What::kStacked) return std::nullopt;
    const uint32_t axis = stacked_layers(catalog, tensor) != 0 ? 1 : 0;
    if (tensor.shape.size() <= axis + 1) return std::nullopt;
    return axis;
  }

  uint32_t ranks_;
  uint64_t count_ = 0;
};

}  // namespace

Catalog rank_part(Catalog catalog, const Topology& topology, const Rank& rank) {
  if (topology.pp == 1 && topology.ep == 1) return catalog;
  locate(catalog);
  const Stages stages(catalog, topology.pp);
  const Experts experts(catalog, topology.ep);
  std::vector<Tensor> kept;
  for (Tensor& tensor : catalog.tensors) {
    // Experts first: whether layers are stacked is decided by the whole shape.
    if (!experts.take(catalog, tensor, rank.ep)) continue;
    if (stacked_layers(catalog, tensor) != 0 && !is_tower(name_of(tensor))) {
      const auto [begin, end] = stages.rows(tensor, rank.pp);
      if (begin >= end) continue;
      narrow(tensor, 0, {begin, end});
    } else if (!stages.holds(tensor, rank.pp)) {
      continue;
    }
    kept.push_back(std::move(tensor));
  }
  catalog.tensors = std::move(kept);
  return catalog;
}

void add_rank_rules(Catalog& catalog, uint32_t tp) {
  const size_t own = catalog.sidecars.size();
  if (auto config = families::config_sidecar(catalog);
      config && std::ranges::find(catalog.sidecars, config->name,
                                  &Sidecar::name) == catalog.sidecars.end())
    catalog.sidecars.push_back(*std::move(config));
  formats::add_rank_rules(catalog, families::dialect_of(catalog), tp);
  catalog.sidecars.resize(own);
}

void apply_rules(Catalog& catalog, const formats::ReadOptions& options) {
  if (formats::traits_of(catalog.format).reads_rules ||
      (options.family.empty() && options.shard_dims_file.empty()))
    return;
  families::Rules rules;
  if (families::Rules::is_family(options.family))
    rules = families::Rules::for_family(options.family, {}, "--family");
  if (!options.shard_dims_file.empty())
    rules = families::Rules::from_file(options.shard_dims_file)
                .over(std::move(rules));
  families::apply(catalog, rules);
}

}  // namespace ckpt::library
