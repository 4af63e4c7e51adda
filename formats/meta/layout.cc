// SPDX-License-Identifier: Apache-2.0
#include "formats/meta/layout.h"

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "lib/text/number.h"
#include "models/rules.h"

namespace ckpt::meta {
namespace {

using formats::Cut;

constexpr std::string_view kLayers = "layers.";

// The parts of a layer, in the order of Meta's files.
struct Part {
  std::string_view ending;
  Role role;
};
constexpr auto kParts = std::to_array<Part>({
    {".attention.wq.weight", Role::kQuery},
    {".attention.wk.weight", Role::kKey},
    {".attention.wv.weight", Role::kKey},
    {".attention.wo.weight", Role::kOut},
    {".feed_forward.gate.weight", Role::kWhole},
    {".w1.weight", Role::kRows},
    {".w2.weight", Role::kColumns},
    {".w3.weight", Role::kRows},
    {".attention_norm.weight", Role::kWhole},
    {".ffn_norm.weight", Role::kWhole},
});

// The part that a name in a layer denotes; kParts.size() if unknown.
size_t part_of(std::string_view name) {
  const auto found = std::ranges::find_if(
      kParts, [&](const Part& part) { return name.ends_with(part.ending); });
  return static_cast<size_t>(found - kParts.begin());
}

std::optional<uint64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayers)) return std::nullopt;
  name.remove_prefix(kLayers.size());
  const auto layer = text::take_number(name);
  return name.starts_with('.') ? layer : std::nullopt;
}

// What a dimension must be according to params.json, if that says so.
struct Wanted {
  std::optional<uint64_t> size;
  std::string_view why;
};

Wanted wanted_size(Role role, const Params& params) {
  switch (role) {
    case Role::kQuery:
    case Role::kOut:
      return {params.query_rows(), "n_heads"};
    case Role::kKey:
      return {params.key_rows(), "n_kv_heads"};
    default:
      return {};
  }
}

void check_size(const std::string& path, std::string_view name, uint64_t size,
                const Shape& local, uint32_t ranks, const Wanted& wanted) {
  if (!wanted.size || size == *wanted.size) return;
  throw input_error({path, std::string(name)},
                    "{} of {} files make {}, by {} in params.json it is {}",
                    to_string(local), ranks, size, wanted.why, *wanted.size)
      .with_hint("are all files of the checkpoint here, and its params.json?");
}

[[noreturn]] void refuse_overflow(const std::string& path,
                                  std::string_view name, const Shape& local) {
  throw input_error({path, std::string(name)},
                    "{} in each file: the whole is too large",
                    to_string(local));
}

uint32_t stored_embedding_dim(const std::string& path, std::string_view name,
                              const Shape& local, uint32_t ranks,
                              const std::optional<Params>& params,
                              std::optional<uint64_t> width) {
  if (ranks == 1) return embedding_dim(params);
  if (width && local[1] == *width) return 0;
  if (width && checked_mul(local[1], ranks) == *width) return 1;
  throw input_error({path, std::string(name)},
                    "{} in each of {} files: neither dimension makes it one of "
                    "dim {}",
                    to_string(local), ranks, width.value_or(0))
      .with_hint("are all files of the checkpoint here, and its params.json?");
}

// Ranks that hold the same key/value head.
uint32_t repeat_of(Role role, uint32_t ranks,
                   const std::optional<Params>& params) {
  if (role != Role::kKey || !params || !params->kv_heads) return 1;
  if (ranks <= *params->kv_heads || ranks % *params->kv_heads != 0) return 1;
  return static_cast<uint32_t>(ranks / *params->kv_heads);
}

uint32_t dim_of(Role role) {
  return role == Role::kColumns || role == Role::kOut ? 1 : 0;
}

[[noreturn]] void refuse_heads(const Catalog& source, const Tensor& tensor,
                               uint64_t heads, std::string_view which,
                               uint32_t ranks) {
  throw unfaithful_error({source.path, tensor.name},
                         "{} ranks can't share {} {} heads: a file holds whole "
                         "heads",
                         ranks, heads, which)
      .with_hint(fmt::format("--tp has to divide {}{}", heads,
                             which == "key/value" ? ", or be a multiple" : ""));
}

void check_heads(const Catalog& source, const Tensor& tensor, Role role,
                 uint32_t ranks, uint32_t held,
                 const std::optional<Params>& params) {
  if (ranks == 1 || held % ranks == 0) return;  // heads are already whole
  if (!params || !params->heads || !params->kv_heads)
    throw unfaithful_error({source.path, tensor.name},
                           "{} ranks are to share its heads, and how many "
                           "there are is not known",
                           ranks)
        .with_hint("put params.json (n_heads, n_kv_heads) beside the files");
  if (*params->heads % ranks != 0)
    refuse_heads(source, tensor, *params->heads, "query", ranks);
  if (role == Role::kKey && *params->kv_heads % ranks != 0 &&
      ranks % *params->kv_heads != 0)
    refuse_heads(source, tensor, *params->kv_heads, "key/value", ranks);
}

Cut known_cut(const Tensor& tensor, Role role, uint32_t dim, uint32_t ranks,
              const std::optional<Params>& params) {
  if (role == Role::kWhole) return {};
  if (tensor.shape.size() != 2)
    throw unfaithful_error({{}, tensor.name},
                           "has shape {}, Meta's has two dimensions",
                           to_string(tensor.shape));
  Cut cut = Cut::even(dim, tensor.shape[dim]);
  cut.segments[0].repeat = repeat_of(role, ranks, params);
  return cut;
}

Cut unknown_cut(const Catalog& source, const Tensor& tensor, uint32_t ranks) {
  if (ranks > 1 && tensor.tp.state == TpRule::State::kUnknown)
    throw families::no_rule_error(source.path, tensor, source.family, ranks);
  if (tensor.tp.state != TpRule::State::kSplit ||
      tensor.tp.dim >= tensor.shape.size())
    return {};
  return Cut::even(tensor.tp.dim, tensor.shape[tensor.tp.dim],
                   tensor.tp.groups);
}

}  // namespace

Role role_of(std::string_view name) {
  if (name == "tok_embeddings.weight") return Role::kEmbedding;
  if (name == "output.weight") return Role::kRows;
  if (name == "norm.weight" || name == "rope.freqs") return Role::kWhole;
  if (!layer_of(name)) return Role::kUnknown;
  const size_t part = part_of(name);
  return part < kParts.size() ? kParts[part].role : Role::kUnknown;
}

std::tuple<int, uint64_t, int> order_of(std::string_view name) {
  constexpr auto kFirst = std::to_array<std::string_view>(
      {"tok_embeddings.weight", "norm.weight", "output.weight"});
  const auto first = std::ranges::find(kFirst, name);
  if (first != kFirst.end())
    return {static_cast<int>(first - kFirst.begin()), 0, 0};
  if (const auto layer = layer_of(name))
    return {3, *layer, static_cast<int>(part_of(name))};
  return {name == "rope.freqs" ? 5 : 4, 0, 0};
}

uint32_t embedding_dim(const std::optional<Params>& params) {
  return params && params->unsaid_vocab ? 1 : 0;
}

std::optional<Cut> stored_cut(const std::string& path, std::string_view name,
                              const Shape& local, uint32_t ranks,
                              const std::optional<Params>& params,
                              std::optional<uint64_t> width) {
  const Role role = role_of(name);
  if (role == Role::kWhole) return Cut{};
  if (role == Role::kUnknown)
    return ranks == 1 ? std::optional(Cut{}) : std::nullopt;
  if (local.size() != 2)
    throw input_error({path, std::string(name)},
                      "has shape {}, expected two dimensions",
                      to_string(local));
  const uint32_t dim =
      role == Role::kEmbedding
          ? stored_embedding_dim(path, name, local, ranks, params, width)
          : dim_of(role);
  const uint32_t repeat = repeat_of(role, ranks, params);
  const auto size = formats::whole_size(local[dim], ranks, repeat);
  if (!size) refuse_overflow(path, name, local);
  if (params)
    check_size(path, name, *size, local, ranks, wanted_size(role, *params));
  return Cut{.dim = dim, .segments = {{.size = *size, .repeat = repeat}}};
}

Cut wanted_cut(const Catalog& source, const Tensor& tensor, uint32_t ranks,
               uint32_t held, const std::optional<Params>& params) {
  const Role role = role_of(tensor.name);
  const bool heads =
      role == Role::kQuery || role == Role::kKey || role == Role::kOut;
  if (heads) check_heads(source, tensor, role, ranks, held, params);
  uint32_t dim = dim_of(role);
  if (role == Role::kEmbedding)
    dim = source.format == "meta" && tensor.tp.state == TpRule::State::kSplit
              ? tensor.tp.dim
              : embedding_dim(params);
  const Cut cut = role == Role::kUnknown
                      ? unknown_cut(source, tensor, ranks)
                      : known_cut(tensor, role, dim, ranks, params);
  if (formats::fits(cut, tensor.shape, ranks)) return cut;
  throw unfaithful_error({source.path, tensor.name},
                         "dimension {} of {} has {} elements, which {} ranks "
                         "do not divide",
                         cut.dim, to_string(tensor.shape),
                         tensor.shape[cut.dim], ranks)
      .with_hint("give another --tp: one that divides heads, widths and rows");
}

}  // namespace ckpt::meta
