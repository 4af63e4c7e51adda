// SPDX-License-Identifier: Apache-2.0
#include "convert/warnings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ckpt/note.h"
#include "convert/config/parts.h"
#include "convert/quantized/config.h"
#include "convert/tokens.h"
#include "lib/text/other_json.h"

namespace ckpt::families {

void warn_of_padding(Catalog& source, const Numbers& numbers) {
  if (numbers.dialect().name != "mcore" || numbers.side() != "mcore" ||
      !numbers.eval("vocab_size").is_null())
    return;
  for (const std::string& line : numbers.used())
    if (line.find("$V") != line.npos && line.find("padded") != line.npos)
      source.problems.push_back(warning(
          "vocabulary", {source.path, {}},
          "the args say how many rows the vocabulary was padded to, not how "
          "many are in use: all are kept; --vocab-size N cuts the padding"));
}

void warn_of_rounding(Catalog& source, DType dtype) {
  constexpr uint8_t kSums = kAddOne | kSubtractOne;
  constexpr uint8_t kDecays = kNegatedExp | kLogOfNegated;
  uint64_t sums = 0, decays = 0;
  DType of_decays = dtype;
  for (const Tensor& tensor : source.tensors) {
    uint8_t transforms = 0;
    for (const Piece& piece : tensor.pieces) transforms |= piece.transform;
    if (transforms & kSums) ++sums;
    // What is pinned to a narrower dtype comes back from it.
    if (!(transforms & kDecays) || tensor.pinned) continue;
    ++decays;
    of_decays = tensor.dtype;
  }
  const auto warn_of = [&](uint64_t count, const char* what, DType stored) {
    if (count == 0) return;
    source.problems.push_back(
        warning("rounded", {source.path, {}},
                "{} {} in one of the dialects, and rounded to {}: the way "
                "back does not give the same bits",
                count, what, name(stored)));
  };
  warn_of(sums, "norms are stored with one more", dtype);
  warn_of(decays, "decays are stored as -exp(x)", of_decays);
}

namespace {

void warn(Catalog& catalog, const char* kind, std::string message) {
  catalog.problems.push_back(
      warning(kind, {catalog.path, {}}, "{}", std::move(message)));
}

Json beside(const Catalog& catalog, std::string_view name) {
  constexpr uint64_t kMost = uint64_t{16} << 20;
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == name && sidecar.size <= kMost)
      return text::parse_or_discard<Json>(sidecar_text(sidecar));
  return {};
}

std::set<int64_t> tokens(const Json& config, const char* key) {
  std::set<int64_t> ids;
  const Json value = config.is_object() ? config.value(key, Json()) : Json();
  const auto take = [&](const Json& one) {
    if (one.is_number_integer()) ids.insert(one.get<int64_t>());
  };
  if (value.is_array())
    for (const Json& one : value) take(one);
  take(value);
  return ids;
}

bool is_plain(const Tensor& tensor) {
  return tensor.kind != Kind::model || tensor.dtype == DType::f32 ||
         tensor.dtype == DType::bf16 || tensor.dtype == DType::f16 ||
         tensor.dtype == DType::f64;
}

}  // namespace

std::optional<Problem> leftover_quantization(const Catalog& catalog,
                                             const Json& config) {
  const Json text =
      config.is_object() ? config.value("text_config", Json()) : Json();
  for (const char* key : {"quantization_config", "compression_config"})
    for (const Json* where : {&config, &text})
      if (where->is_object() && where->value(key, Json()).is_object() &&
          std::ranges::all_of(catalog.tensors, is_plain))
        return warning("leftover", {catalog.path, {}},
                       "config.json says {} and no weight is quantized: what "
                       "opens the model looks for scales; take the key out",
                       key);
  return std::nullopt;
}

void warn_of_leftovers(Catalog& catalog, const Json& config, uint64_t rows,
                       bool asked) {
  if (auto found = leftover_quantization(catalog, config))
    catalog.problems.push_back(std::move(*found));
  const auto stops =
      tokens(beside(catalog, "generation_config.json"), "eos_token_id");
  const auto ends = tokens(config, "eos_token_id");
  if (!stops.empty() && !ends.empty() &&
      std::ranges::none_of(ends,
                           [&](int64_t id) { return stops.contains(id); }))
    warn(catalog, "token_ids",
         fmt::format("generation_config.json stops at token {}, config.json "
                     "says eos_token_id {}: transformers generates by the "
                     "first, training and other programs may take the second",
                     fmt::join(stops, ", "), fmt::join(ends, ", ")));
  for (std::string& one : tokens_past(catalog, rows, asked))
    warn(catalog, "vocabulary", std::move(one));
}

void complete_token_ids(Catalog& catalog, Json& config) {
  const Json generation = beside(catalog, "generation_config.json");
  std::vector<std::string> missing;
  for (const char* key : kTokenIds) {
    if (config.contains(key)) continue;
    if (generation.is_object() && generation.contains(key))
      config[key] = generation.at(key);
    else if (key != std::string_view("pad_token_id"))  // many have none
      missing.emplace_back(key);
  }
  if (missing.empty()) return;
  warn(catalog, "token_ids",
       fmt::format("the source does not say {}, and transformers has values of "
                   "its own for the model's class: --config-from DIR, or take "
                   "them from the tokenizer",
                   fmt::join(missing, " and ")));
}

}  // namespace ckpt::families
