// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/mismatches.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/text/format.h"
#include "lib/text/words.h"

namespace ckpt::families {
namespace {

constexpr size_t kListed = 10;

void add(std::string& text, const char* what,
         const std::vector<std::string>& names) {
  if (names.empty()) return;
  text += fmt::format("{}{} {}", text.empty() ? "" : "; ",
                      text::counted(names.size(), "tensor"), what);
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i)
    text += (i == 0 ? ": " : ", ") + names[i];
  if (names.size() > kListed) text += ", …";
}

// In one of the dialects.
bool is_head(std::string_view name) {
  constexpr std::string_view kHeads =
      "output_layer.weight lm_head.weight output.weight final_proj.weight "
      "w_out.weight";
  return text::ends_with_any(name, kHeads);
}
}  // namespace

void Mismatches::missing(const std::string& name, const std::string& of) {
  headless_ = is_head(of) && (missing_.empty() || headless_);
  missing_.push_back(name == of ? name : name + " (for " + of + ")");
}

void Mismatches::misshapen(const std::string& name, const Error& error) {
  misshapen_.push_back(name + ": " + error.problem());
  shapes_.push_back({"misshapen", name, error.problem(), error.hint()});
  if (!error.hint().empty()) hint_ = error.hint();
}

std::vector<Finding> Mismatches::findings() const {
  std::vector<Finding> all = shapes_;
  for (const std::string& name : missing_)
    all.push_back({"missing", name.substr(0, name.find(" (for ")), {}, {}});
  for (const std::string& name : unknown_)
    all.push_back({"unknown", name, {}, {}});
  for (const std::string& name : doubled_)
    all.push_back({"doubled", name, "is there twice", {}});
  return all;
}

void Mismatches::check(const std::string& path, const Numbers& numbers,
                       const std::string& direction) const {
  std::string text;
  add(text, "unknown to the family", unknown_);
  add(text, "missing", missing_);
  add(text, "found twice", doubled_);
  add(text, "of another shape", misshapen_);
  if (text.empty()) return;
  throw unfaithful_error({path, {}}, "family {}, {}: {}",
                         numbers.family().name(), direction, text)
      .with_hint(hint(numbers));
}

std::string Mismatches::hint(const Numbers& numbers) const {
  if (!misshapen_.empty() && !hint_.empty()) return hint_;
  if (!misshapen_.empty())
    return "the numbers may be another model's: `ckpt family check` prints "
           "them, --set NAME=VALUE changes one";
  const auto predicts = [](const std::string& name) {
    return name.starts_with("mtp.");
  };
  if (!unknown_.empty() && std::ranges::all_of(unknown_, predicts))
    return "--drop 'mtp.*' leaves these layers out: they guess tokens after "
           "the next one, and without them the model computes the same";
  if (!unknown_.empty())
    return "--drop GLOB leaves tensors out by name; --family-file FILE has "
           "rules for them";
  if (headless_ && numbers.dialect().vars.contains("$tie"))
    return "if the embedding is the head too: --set tie=true; without a head a "
           "model gives no logits";
  if (!missing_.empty())
    return "if the model lacks these tensors: --allow-missing GLOB";
  return "--drop GLOB leaves one of them out";
}

}  // namespace ckpt::families
