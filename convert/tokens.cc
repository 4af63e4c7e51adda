// SPDX-License-Identifier: Apache-2.0
#include "convert/tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "convert/config/parts.h"
#include "convert/quantized/config.h"
#include "lib/text/other_json.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMostBytes = uint64_t{128} << 20;

std::optional<std::string> text_beside(const Catalog& catalog,
                                       std::string_view name) {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == name && sidecar.size <= kMostBytes)
      return sidecar_text(sidecar);
  return std::nullopt;
}

// The largest token of a tokenizer's file, which is read without keeping it:
//   tokenizer.json     added_tokens[].id; model.vocab, {text: token} or a list
//   vocab.json, added_tokens.json     {text: token}
class LastToken : public nlohmann::json_sax<Json> {
 public:
  explicit LastToken(bool tokenizer) : tokenizer_(tokenizer) {}
  std::optional<uint64_t> last() const { return last_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    const bool counts =
        !tokenizer_
            ? path_.size() == 1
            : (path_.size() == 2 && is(0, "model") && is(1, "vocab")) ||
                  (path_.size() == 3 && is(0, "added_tokens") && is(2, "id"));
    if (counts) take(value);
    return true;
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool key(string_t& name) override {
    path_.back() = std::move(name);
    return true;
  }
  bool start_array(std::size_t) override {
    // A list of [text, score]: its entries are the tokens, in their order.
    if (tokenizer_ && path_.size() == 3 && is(0, "model") && is(1, "vocab"))
      take(listed_++);
    return enter();
  }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool is(size_t depth, std::string_view name) const {
    return path_[depth] == name;
  }
  bool enter() {
    constexpr size_t kDeepest = 128;
    path_.emplace_back();
    return path_.size() < kDeepest;
  }
  bool leave() {
    path_.pop_back();
    return true;
  }
  void take(uint64_t token) { last_ = std::max(last_.value_or(token), token); }

  const bool tokenizer_;
  std::vector<std::string> path_;  // keys; "" of a list
  std::optional<uint64_t> last_;
  uint64_t listed_ = 0;
};

// The largest token that tokenizer_config.json adds.
std::optional<uint64_t> last_added(const std::string& text) {
  const auto config = text::parse_or_discard<Json>(text);
  std::optional<uint64_t> last;
  if (!config.is_object()) return last;
  const Json added = config.value("added_tokens_decoder", Json());
  if (!added.is_object()) return last;
  for (const auto& [key, token] : added.items()) {
    uint64_t id = 0;
    const auto [end, failure] =
        std::from_chars(key.data(), key.data() + key.size(), id);
    if (failure == std::errc{} && end == key.data() + key.size())
      last = std::max(last.value_or(id), id);
  }
  return last;
}

// A line for each token.
std::optional<uint64_t> last_line(const std::string& text) {
  const auto lines = static_cast<uint64_t>(std::ranges::count(text, '\n')) +
                     (!text.empty() && text.back() != '\n');
  return lines == 0 ? std::nullopt : std::optional(lines - 1);
}

std::optional<uint64_t> last_of(std::string_view name,
                                const std::string& text) {
  if (name == "tokenizer_config.json") return last_added(text);
  if (name == "vocab.txt") return last_line(text);
  LastToken found(name == "tokenizer.json");
  Json::sax_parse(text, &found, Json::input_format_t::json, false);
  return found.last();
}

// "eos_token_id", "suppress_tokens": lists of lists, too.
bool is_past(const Json& value, uint64_t rows) {
  if (value.is_array())
    return std::ranges::any_of(
        value, [&](const Json& one) { return is_past(one, rows); });
  return value.is_number_unsigned() && value.get<uint64_t>() >= rows;
}

bool names_tokens(std::string_view key) {
  return key.ends_with("_token_id") || key.ends_with("suppress_tokens") ||
         key.ends_with("_words_ids") || key == "forced_decoder_ids";
}

std::string past_of_generation(const Catalog& catalog, uint64_t rows) {
  const auto text = text_beside(catalog, "generation_config.json");
  const Json config =
      text ? text::parse_or_discard<Json>(*text) : Json::object();
  std::vector<std::string> lost;
  if (config.is_object())
    for (const auto& [key, value] : config.items())
      if (names_tokens(key) && is_past(value, rows)) lost.push_back(key);
  return lost.empty() ? std::string()
                      : fmt::format(
                            "{} of generation_config.json: the vocabulary has "
                            "{} rows, and none for it",
                            fmt::join(lost, ", "), rows);
}

}  // namespace

std::vector<std::string> tokens_past(const Catalog& catalog, uint64_t rows,
                                     bool all) {
  std::vector<std::string> said;
  if (rows == 0) return said;
  if (std::string lost = past_of_generation(catalog, rows); !lost.empty())
    said.push_back(std::move(lost));
  for (const std::string_view name :
       {"tokenizer_config.json", "tokenizer.json", "vocab.json",
        "added_tokens.json", "vocab.txt"}) {
    const bool adds = name == "tokenizer_config.json";
    if (!adds && !all) continue;
    const auto text = text_beside(catalog, name);
    const auto last = text ? last_of(name, *text) : std::nullopt;
    if (!last || *last < rows) continue;
    said.push_back(
        fmt::format("{} {} token {}, and the vocabulary has {} "
                    "rows: the tokens past them have no embedding",
                    name, adds ? "adds" : "has", *last, rows));
  }
  return said;
}

}  // namespace ckpt::families
