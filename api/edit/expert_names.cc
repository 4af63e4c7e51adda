// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "api/edit/experts.h"
#include "api/edit/number_list.h"
#include "ckpt/error.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

using What = ExpertName::What;

constexpr NumberList kExpertList{.option = "--experts",
                                 .what = "a number of an expert",
                                 .example = "0-31,40",
                                 .limit = kMostExperts,
                                 .plural = "experts"};

// Cuts the first component off a text and returns it.
std::string_view next_part(std::string_view& rest) {
  const size_t dot = rest.find('.');
  const std::string_view part = rest.substr(0, dot);
  rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
  return part;
}

// "linear_fc1.weight7": where its digits begin. Nothing for other endings.
std::optional<size_t> digits_at_end(std::string_view name) {
  const size_t dot = name.rfind('.') + 1;  // npos + 1 is 0
  for (const std::string_view word : {"weight", "bias"})
    if (name.substr(dot).starts_with(word) &&
        text::number(name.substr(dot + word.size())))
      return dot + word.size();
  return std::nullopt;
}

// "5", and "expert_5" of Switch Transformers and NLLB: the digits.
std::string_view digits_of(std::string_view part) {
  constexpr std::string_view kWord = "expert_";
  return part.starts_with(kWord) ? part.substr(kWord.size()) : part;
}

ExpertName numbered(std::string_view name, std::string_view module,
                    size_t begin, size_t end) {
  const auto expert = text::number(name.substr(begin, end - begin));
  return {What::kNumbered, module, expert.value_or(0), begin, end};
}

// What comes after "….experts.".
ExpertName of_expert(std::string_view name, std::string_view module,
                     std::string_view rest) {
  std::string_view tail = rest;
  // vLLM's fused layer also holds what every token goes through.
  if (rest.starts_with("_shared_experts.")) return {};
  while (!tail.empty()) {
    const size_t begin = name.size() - tail.size();
    const std::string_view part = next_part(tail);
    if (const std::string_view digits = digits_of(part); text::number(digits))
      return numbered(name, module, begin + part.size() - digits.size(),
                      begin + part.size());
    if (part != "experts" && part != "local_experts" &&
        part != "deepspeed_experts")
      break;
  }
  // "experts.weight1" itself is the first matrix of all experts.
  if (const auto digits = digits_at_end(name);
      digits && rest.find('.') != rest.npos)
    return numbered(name, module, *digits, name.size());
  return {What::kStacked, module, 0, 0, 0};
}

// GraniteMoe's block_sparse_moe.{input,output}_linear.weight [E, …].
bool is_stacked_linear(std::string_view before, std::string_view part) {
  return before == "block_sparse_moe" &&
         (part == "input_linear" || part == "output_linear");
}

// True for a router's part or what it adds to its scores.
bool is_router_part(std::string_view part) {
  constexpr std::string_view kParts[] = {
      "gate",        "router",    "router_DE",
      "expert_bias", "gate_bias", "e_score_correction_bias",
      "moe_statics"};
  return std::ranges::find(kParts, part) != std::end(kParts);
}

}  // namespace

std::vector<uint64_t> parse_experts(const std::string& list) {
  std::set<uint64_t> experts;
  for (const uint64_t expert : parse_numbers(kExpertList, list))
    if (!experts.insert(expert).second)
      throw usage_error({}, "--experts {}: expert {} is named twice", list,
                        expert);
  return {experts.begin(), experts.end()};
}

std::optional<uint64_t> new_expert(const std::vector<uint64_t>& kept,
                                   uint64_t expert) {
  const auto found = std::ranges::lower_bound(kept, expert);
  if (found == kept.end() || *found != expert) return std::nullopt;
  return static_cast<uint64_t>(found - kept.begin());
}

ExpertName parse_expert_name(std::string_view name) {
  std::string_view rest = name, before;
  while (!rest.empty()) {
    const size_t begin = name.size() - rest.size();
    const std::string_view part = next_part(rest);
    const std::string_view module = name.substr(0, begin == 0 ? 0 : begin - 1);
    if (part == "experts" || part == "local_experts")
      return of_expert(name, module, rest);
    if (is_stacked_linear(before, part))
      return {What::kStacked, module, 0, 0, 0};
    before = part;
  }
  return {};
}

std::string_view router_part(
    std::string_view name, const std::set<std::string, std::less<>>& modules) {
  for (size_t dot = name.find('.'); dot != name.npos;
       dot = name.find('.', dot + 1)) {
    if (!modules.contains(name.substr(0, dot))) continue;
    std::string_view rest = name.substr(dot + 1);
    // Gemma's scales the input and has nothing to do with experts.
    if (rest == "router.scale") return {};
    const std::string_view part = next_part(rest);
    if (is_router_part(part)) return part;
  }
  return {};
}

}  // namespace ckpt::library
