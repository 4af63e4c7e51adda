// SPDX-License-Identifier: Apache-2.0
#include "formats/vllm/layout.h"

#include <array>
#include <utility>

#include "ckpt/error.h"

namespace ckpt::vllm {
namespace {

using formats::Cut;
using formats::Segment;

// "a.b.qkv_proj.weight": module qkv_proj, parameter weight.
struct Words {
  std::string_view module;
  std::string_view parameter;
};

Words split(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {{}, name};
  const std::string_view path = name.substr(0, dot);
  const size_t above = path.rfind('.');
  return {above == path.npos ? path : path.substr(above + 1),
          name.substr(dot + 1)};
}

bool is_plain(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         dtype == DType::f64;
}

struct Rule {
  std::string_view module;
  std::string_view parameter;
  size_t rank;  // dimensions
  Role role;
};
constexpr auto kRules = std::to_array<Rule>({
    {"qkv_proj", "weight", 2, Role::kQkv},
    {"qkv_proj", "bias", 1, Role::kQkv},
    {"gate_up_proj", "weight", 2, Role::kGateUp},
    {"gate_up_proj", "bias", 1, Role::kGateUp},
    {"o_proj", "weight", 2, Role::kColumns},
    {"o_proj", "bias", 1, Role::kWhole},
    {"down_proj", "weight", 2, Role::kColumns},
    {"down_proj", "bias", 1, Role::kWhole},
    {"embed_tokens", "weight", 2, Role::kVocab},
    {"lm_head", "weight", 2, Role::kVocab},
    {"lm_head", "bias", 1, Role::kVocab},
    {"up_proj", "weight", 2, Role::kRows},
    {"up_proj", "bias", 1, Role::kRows},
    {"experts", "w13_weight", 3, Role::kUp13},
    {"experts", "w2_weight", 3, Role::kDown2},
    {"routed_experts", "w13_weight", 3, Role::kUp13},
    {"routed_experts", "w2_weight", 3, Role::kDown2},
    {"routed_experts", "w13_bias", 2, Role::kBias13},
    {"routed_experts", "w2_bias", 2, Role::kBias2},
    {"routed_experts", "e_score_correction_bias", 1, Role::kWhole},
    {"block_sparse_moe", "e_score_correction_bias", 1, Role::kWhole},
    {"embedding", "weight", 2, Role::kVocab},
    {"attn", "sinks", 1, Role::kRows},
    {"router", "weight", 2, Role::kWhole},
    {"router", "bias", 1, Role::kWhole},
    {"out_proj", "weight", 2, Role::kColumns},
    {"out_proj", "bias", 1, Role::kWhole},
    {"fc1", "weight", 2, Role::kRows},
    {"fc1", "bias", 1, Role::kRows},
    {"fc2", "weight", 2, Role::kColumns},
    {"fc2", "bias", 1, Role::kWhole},
    {"embed_positions", "weight", 2, Role::kWhole},
    {"project_in", "weight", 2, Role::kWhole},
    {"project_out", "weight", 2, Role::kWhole},
    {"input_linear", "weight", 2, Role::kGateUp},
    {"output_linear", "weight", 2, Role::kColumns},
    {"expert_gate", "weight", 2, Role::kWhole},
    // Multi-head latent attention: what leads into the low rank is whole.
    {"fused_qkv_a_proj", "weight", 2, Role::kWhole},
    {"fused_qkv_a_proj", "bias", 1, Role::kWhole},
    {"kv_a_proj_with_mqa", "weight", 2, Role::kWhole},
    {"kv_a_proj_with_mqa", "bias", 1, Role::kWhole},
    {"q_proj", "weight", 2, Role::kRows},
    {"q_b_proj", "weight", 2, Role::kRows},
    {"kv_b_proj", "weight", 2, Role::kRows},
    {"gate", "weight", 2, Role::kWhole},
    {"gate", "e_score_correction_bias", 1, Role::kWhole},
    {"shared_expert_gate", "weight", 2, Role::kWhole},
});

bool is_norm(const Words& words) {
  return words.module.ends_with("norm") &&
         (words.parameter == "weight" || words.parameter == "bias");
}

uint32_t dim_of(Role role) {
  if (role == Role::kDown2) return 2;
  return role == Role::kColumns || role == Role::kUp13 ||
                 role == Role::kMixed13 || role == Role::kBias13
             ? 1
             : 0;
}

uint32_t groups_of(Role role) {
  return role == Role::kGateUp || role == Role::kUp13 ? 2 : 1;
}

// Checks the dimension that has the model's width, if that is known.
void check_width(std::string_view name, Role role, const Shape& shape,
                 const Facts& facts) {
  if (!facts.config || !facts.config->hidden || shape.size() < 2) return;
  if (role == Role::kRows) return;  // of the low rank's width
  if (role == Role::kBias13) return;
  const size_t at = role == Role::kUp13 || role == Role::kMixed13    ? 2
                    : role == Role::kDown2                           ? 1
                    : role == Role::kColumns || role == Role::kWhole ? 0
                                                                     : 1;
  if (role == Role::kWhole || shape[at] == *facts.config->hidden) return;
  throw unfaithful_error({facts.path, std::string(name)},
                         "{} has {} in dimension {}, hidden_size in "
                         "config.json is {}: it is not arranged as usual",
                         to_string(shape), shape[at], at, *facts.config->hidden)
      .with_hint("leave it out with --exclude, or correct config.json");
}

bool is_expert(Role role) {
  return role == Role::kUp13 || role == Role::kDown2 ||
         role == Role::kMixed13 || role == Role::kBias13 ||
         role == Role::kBias2;
}

bool is_fp8(const Facts& facts) { return facts.config && facts.config->blocks; }

// Elements of a dimension that share a scale: rows and columns are the last
// two dimensions.
uint64_t block_of(size_t dim, size_t rank, const Facts& facts) {
  if (rank < 2 || dim + 2 < rank) return 1;
  return (*facts.config->blocks)[dim + 2 == rank ? 0 : 1];
}

// The shape of a weight whose scales have this shape, except that its last
// block may be smaller.
Shape weight_shape(Shape scales, const std::string& name, const Facts& facts) {
  for (size_t d = 0; d < scales.size(); ++d) {
    const uint64_t block = block_of(d, scales.size(), facts);
    if (scales[d] > UINT32_MAX / block)
      throw input_error({facts.path, name},
                        "{} can't be the scales of a weight",
                        to_string(scales));
    scales[d] *= block;
  }
  return scales;
}

// Each rank must have whole blocks of each segment.
void check_blocks(const Cut& cut, size_t rank, const std::string& name,
                  const Facts& facts) {
  if (cut.whole() || facts.ranks == 1) return;
  const uint64_t block = block_of(cut.dim, rank, facts);
  for (const formats::Segment& segment : cut.segments)
    if (segment.size * segment.repeat % (block * facts.ranks) != 0)
      throw unfaithful_error({facts.path, name},
                             "{} ranks would cut blocks of {}: vLLM wants "
                             "whole blocks of fp8 on each",
                             facts.ranks, block)
          .with_hint("give a smaller --tp, or --dtype bf16");
}

// How the scales of a weight with this cut are cut.
Cut scale_cut(Cut cut, size_t rank, const std::string& name,
              const Facts& facts) {
  check_blocks(cut, rank, name, facts);
  for (formats::Segment& segment : cut.segments)
    segment.size /= block_of(cut.dim, rank, facts);
  return cut;
}

// In some models the same names mean other things.
Role role_in(std::string_view name, DType dtype, const Shape& shape,
             const Facts& facts) {
  const Role role = role_of(name, dtype, shape, is_fp8(facts));
  const std::string_view type =
      facts.config ? std::string_view(facts.config->model_type) : "";
  if (type == "gpt_oss" && role == Role::kUp13) return Role::kMixed13;
  if (type == "minimax_m2" && role == Role::kWhole && shape.size() == 1) {
    if (name.ends_with(".q_norm.weight")) return Role::kNormQ;
    if (name.ends_with(".k_norm.weight")) return Role::kNormK;
  }
  return role;
}

// Whether ranks own whole experts instead of parts of each.
bool owns_experts(std::string_view name, Role role, const Shape& shape,
                  const Facts& facts) {
  if (!is_expert(role) || !facts.config || !facts.config->experts) return false;
  const uint64_t all = *facts.config->experts;
  if (shape[0] == all) return false;
  if (all % facts.ranks == 0 && shape[0] == all / facts.ranks) return true;
  throw unfaithful_error({facts.path, std::string(name)},
                         "holds {} experts of {} on each of {} ranks", shape[0],
                         all, facts.ranks)
      .with_hint(
          "ranks that own whole experts own as many each; placed round robin, "
          "or with copies of busy ones, they can't be read");
}

[[noreturn]] void refuse_queries(std::string_view name, const Shape& shape,
                                 const Facts& facts,
                                 std::optional<uint64_t> queries) {
  if (!queries)
    throw unfaithful_error({facts.path, std::string(name)},
                           "how many of its {} rows are queries is not known",
                           shape[0])
        .with_hint(
            "put config.json (num_attention_heads, num_key_value_heads) "
            "beside the files, and keep o_proj with qkv_proj");
  throw input_error({facts.path, std::string(name)},
                    "has {} rows, of which {} are queries: the others are not "
                    "keys and as many values",
                    shape[0], *queries);
}

// Rows of the queries, and of the keys, in `shape`.
struct Rows {
  uint64_t q = 0;
  uint64_t kv = 0;
};

Rows rows_of(std::string_view name, const Shape& shape,
             std::optional<uint64_t> queries, const Facts& facts) {
  if (!queries || *queries == 0 || *queries >= shape[0] ||
      (shape[0] - *queries) % 2 != 0)
    refuse_queries(name, shape, facts, queries);
  return {*queries, (shape[0] - *queries) / 2};
}

// Ranks that hold the same keys.
uint32_t repeat_of(const Facts& facts) {
  if (!facts.config || !facts.config->kv_heads) return 1;
  const uint64_t heads = *facts.config->kv_heads;
  if (facts.ranks <= heads || facts.ranks % heads != 0) return 1;
  return static_cast<uint32_t>(facts.ranks / heads);
}

Cut qkv_cut(const Rows& whole, uint32_t repeat) {
  return {.dim = 0,
          .segments = {{.size = whole.q, .repeat = 1},
                       {.size = whole.kv, .repeat = repeat},
                       {.size = whole.kv, .repeat = repeat}}};
}

void check_rows(std::string_view name, const Rows& whole, const Facts& facts) {
  if (!facts.config) return;
  const auto check = [&](uint64_t rows, std::optional<uint64_t> wanted,
                         std::string_view what, std::string_view why) {
    if (!wanted || rows == *wanted) return;
    throw input_error({facts.path, std::string(name)},
                      "{} ranks hold {} rows of {}, by {} in config.json there "
                      "are {}",
                      facts.ranks, rows, what, why, *wanted)
        .with_hint("are all ranks' files here, and is it their config.json?");
  };
  check(whole.q, facts.config->query_rows(), "queries", "num_attention_heads");
  check(whole.kv, facts.config->key_rows(), "keys", "num_key_value_heads");
}

Cut stored_qkv(std::string_view name, const Shape& local, const Facts& facts) {
  std::optional<uint64_t> queries = facts.queries;
  if (!queries && facts.config && facts.config->query_rows())
    queries = *facts.config->query_rows() / facts.ranks;
  const Rows mine = rows_of(name, local, queries, facts);
  const uint32_t repeat = repeat_of(facts);
  const auto q = formats::whole_size(mine.q, facts.ranks);
  const auto kv = formats::whole_size(mine.kv, facts.ranks, repeat);
  if (!q || !kv)
    throw input_error({facts.path, std::string(name)},
                      "{} on each of {} ranks: the whole is too large",
                      to_string(local), facts.ranks);
  check_rows(name, {*q, *kv}, facts);
  return qkv_cut({*q, *kv}, repeat);
}

[[noreturn]] void refuse_heads(const Tensor& tensor, const Facts& facts,
                               uint64_t heads, bool keys) {
  throw unfaithful_error({facts.path, tensor.name},
                         "{} ranks can't share {} {} heads: each holds whole "
                         "heads",
                         facts.ranks, heads, keys ? "key/value" : "query")
      .with_hint(fmt::format("--tp has to divide {}{}", heads,
                             keys ? ", or be a multiple of it" : ""));
}

// Latent attention has as many keys as queries.
void check_query_heads(const Tensor& tensor, uint32_t held,
                       const Facts& facts) {
  if (facts.ranks == 1 || held % facts.ranks == 0) return;
  if (!facts.config || !facts.config->heads)
    throw unfaithful_error({facts.path, tensor.name},
                           "{} ranks are to share its heads, and how many "
                           "there are is not known",
                           facts.ranks)
        .with_hint("put config.json (num_attention_heads) beside the files");
  if (*facts.config->heads % facts.ranks != 0)
    refuse_heads(tensor, facts, *facts.config->heads, false);
}

void check_heads(const Tensor& tensor, uint32_t held, const Facts& facts) {
  if (facts.ranks == 1 || held % facts.ranks == 0) return;
  if (!facts.config || !facts.config->heads || !facts.config->kv_heads)
    throw unfaithful_error({facts.path, tensor.name},
                           "{} ranks are to share its heads, and how many "
                           "there are is not known",
                           facts.ranks)
        .with_hint(
            "put config.json (num_attention_heads, num_key_value_heads) "
            "beside the files");
  const uint64_t heads = *facts.config->heads;
  const uint64_t keys = *facts.config->kv_heads;
  if (heads % facts.ranks != 0) refuse_heads(tensor, facts, heads, false);
  if (keys % facts.ranks != 0 && facts.ranks % keys != 0)
    refuse_heads(tensor, facts, keys, true);
}

Cut wanted_qkv(const Tensor& tensor, uint32_t held, const Facts& facts) {
  std::optional<uint64_t> queries = facts.queries;
  if (!queries && facts.config) queries = facts.config->query_rows();
  const Rows whole = rows_of(tensor.name, tensor.shape, queries, facts);
  check_rows(tensor.name, whole, facts);
  check_heads(tensor, held, facts);
  return qkv_cut(whole, repeat_of(facts));
}

// A norm of all keys is repeated like the keys.
Cut stored_norm(std::string_view name, const Shape& local, const Facts& facts) {
  const uint32_t repeat = repeat_of(facts);
  const auto size = formats::whole_size(local[0], facts.ranks, repeat);
  if (!size)
    throw input_error({facts.path, std::string(name)},
                      "{} on each of {} ranks: the whole is too large",
                      to_string(local), facts.ranks);
  return {.dim = 0, .segments = {{.size = *size, .repeat = repeat}}};
}

// The model's type says which rows of experts with a bias belong to a rank.
void check_told(std::string_view name, Role role, const Facts& facts) {
  if (facts.ranks == 1 || facts.config ||
      (role != Role::kBias13 && role != Role::kBias2))
    return;
  throw unfaithful_error({facts.path, std::string(name)},
                         "how {} ranks share it depends on the model, and "
                         "there is no config.json",
                         facts.ranks)
      .with_hint("put the model's config.json beside the files");
}

}  // namespace

std::optional<std::string> scaled_weight(std::string_view name) {
  if (!name.ends_with(kScaleInv)) return std::nullopt;
  name.remove_suffix(kScaleInv.size());
  if (!name.ends_with("weight")) return std::nullopt;
  return std::string(name);
}

Role role_of(std::string_view name, DType dtype, const Shape& shape, bool fp8) {
  if (shape.empty()) return Role::kWhole;
  if (const auto weight = fp8 ? scaled_weight(name) : std::nullopt)
    return is_plain(dtype) || dtype == DType::f8_e8m0
               ? role_of(*weight, DType::f8_e4m3, shape, true)
               : Role::kUnknown;
  const Words words = split(name);
  if (is_norm(words) && shape.size() == 1) return Role::kWhole;
  for (const Rule& rule : kRules)
    if (rule.module == words.module && rule.parameter == words.parameter)
      return (is_plain(dtype) ||
              (fp8 && dtype == DType::f8_e4m3 && rule.rank > 1 &&
               rule.role != Role::kVocab)) &&
                     shape.size() == rule.rank
                 ? rule.role
                 : Role::kUnknown;
  return Role::kUnknown;
}

std::string output_of(std::string_view qkv_name) {
  constexpr std::string_view kModule = "qkv_proj.";
  return std::string(qkv_name.substr(0, qkv_name.rfind(kModule))) +
         "o_proj.weight";
}

bool is_first_only(std::string_view name, DType dtype, const Shape& local,
                   const Facts& facts) {
  const Role role = role_in(name, dtype, local, facts);
  return role == Role::kBias2 && facts.ranks > 1 && !facts.whole_experts &&
         !owns_experts(name, role, local, facts);
}

std::optional<Cut> stored_cut(std::string_view name, DType dtype,
                              const Shape& local, const Facts& facts) {
  if (const auto weight = is_fp8(facts) ? scaled_weight(name) : std::nullopt) {
    auto cut = stored_cut(*weight, DType::f8_e4m3,
                          weight_shape(local, *weight, facts), facts);
    if (cut) cut = scale_cut(std::move(*cut), local.size(), *weight, facts);
    return cut;
  }
  const Role role = role_in(name, dtype, local, facts);
  if (role == Role::kWhole) return Cut{};
  if (role == Role::kUnknown)
    return facts.ranks == 1 ? std::optional(Cut{}) : std::nullopt;
  check_width(name, role, local, facts);
  check_told(name, role, facts);
  if (owns_experts(name, role, local, facts))
    return Cut::even(0, *facts.config->experts);
  if (role == Role::kBias2) return Cut{};
  if (role == Role::kQkv) return stored_qkv(name, local, facts);
  if (role == Role::kNormK) return stored_norm(name, local, facts);
  const uint32_t dim = dim_of(role);
  const auto size = formats::whole_size(local[dim], facts.ranks);
  if (!size || local[dim] % groups_of(role) != 0)
    throw input_error({facts.path, std::string(name)},
                      "{} on each of {} ranks can't be parts of dimension {}",
                      to_string(local), facts.ranks, dim);
  return Cut::even(dim, *size, groups_of(role));
}

namespace {

std::optional<Cut> plain_cut(const Tensor& tensor, uint32_t held,
                             const Facts& facts) {
  const Role role = role_in(tensor.name, tensor.dtype, tensor.shape, facts);
  if (role == Role::kWhole) return Cut{};
  const bool said = tensor.tp.state == TpRule::State::kSplit;
  if (role == Role::kUnknown || (role == Role::kQkv && said)) {
    if (tensor.tp.state == TpRule::State::kReplicated || facts.ranks == 1)
      return Cut{};
    if (tensor.tp.state != TpRule::State::kSplit ||
        tensor.tp.dim >= tensor.shape.size())
      return std::nullopt;
    return Cut::even(tensor.tp.dim, tensor.shape[tensor.tp.dim],
                     tensor.tp.groups);
  }
  check_width(tensor.name, role, tensor.shape, facts);
  if (role == Role::kQkv) return wanted_qkv(tensor, held, facts);
  if (is_expert(role) && facts.whole_experts)
    return Cut::even(0, tensor.shape[0]);
  check_told(tensor.name, role, facts);
  if (role == Role::kBias2) return Cut{};
  if (role == Role::kNormQ || role == Role::kNormK)
    check_heads(tensor, held, facts);
  if (role == Role::kNormK)
    return Cut{.dim = 0, .segments = {{tensor.shape[0], repeat_of(facts)}}};
  const bool heads = tensor.name.find(".self_attn.") != tensor.name.npos;
  if (role == Role::kRows && heads) check_query_heads(tensor, held, facts);
  return Cut::even(dim_of(role), tensor.shape[dim_of(role)], groups_of(role));
}

}  // namespace

std::optional<Cut> wanted_cut(const Tensor& tensor, uint32_t held,
                              const Facts& facts) {
  const size_t rank = tensor.shape.size();
  if (const auto name =
          is_fp8(facts) ? scaled_weight(tensor.name) : std::nullopt) {
    const Tensor weight{.name = *name,
                        .dtype = DType::f8_e4m3,
                        .shape = weight_shape(tensor.shape, *name, facts)};
    auto cut = plain_cut(weight, held, facts);
    if (cut) cut = scale_cut(std::move(*cut), rank, *name, facts);
    return cut;
  }
  auto cut = plain_cut(tensor, held, facts);
  if (cut && is_fp8(facts) && tensor.dtype == DType::f8_e4m3)
    check_blocks(*cut, rank, tensor.name, facts);
  return cut;
}

}  // namespace ckpt::vllm
