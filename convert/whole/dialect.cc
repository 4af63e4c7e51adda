// SPDX-License-Identifier: Apache-2.0
#include "convert/whole/dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>

#include "ckpt/error.h"
#include "convert/config/gguf.h"
#include "convert/config/trainer.h"
#include "convert/translate.h"
#include "formats/megatron/canonical/names.h"
#include "formats/traits.h"
#include "lib/text/glob.h"
#include "models/family.h"

namespace ckpt::families {

DialectAnswer ask_dialect(const Catalog& names,
                          const TranslateOptions& options) {
  DialectAnswer answer;
  TranslateOptions asked = options;
  asked.to = "hf";
  asked.findings = &answer.findings;
  try {
    translate(names, asked);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    answer.open = error.problem();
  }
  return answer;
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

using Patterns = std::set<std::string, std::less<>>;

// "decoder.layers.#.mlp.router.weight" of a name, and of a rule that has {l} in
// the number's place.
std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (size_t at = 0; at < name.size();) {
    const bool open = name[at] == '{';
    if (!open && !is_digit(name[at])) {
      pattern += name[at++];
      continue;
    }
    pattern += '#';
    if (open) {
      at = std::min(name.find('}', at), name.size() - 1) + 1;
    } else {
      while (at < name.size() && is_digit(name[at])) ++at;
    }
  }
  return pattern;
}

// How far the dialect's rules are from these tensors, by their names alone.
struct Distance {
  size_t count = 0;
  std::string first;  // one that is missing or unknown
};

Distance distance_of(const Dialect& dialect, const Patterns& there) {
  Distance distance;
  const auto add = [&](const std::string& name, const char* what) {
    if (distance.count++ == 0) distance.first = name + what;
  };
  Patterns known;
  std::vector<text::Glob> ignored;
  for (const std::string& glob : dialect.ignore) ignored.emplace_back(glob);
  for (const Rule& rule : dialect.rules) {
    const std::string pattern = pattern_of(rule.to);
    if (rule.rest()) ignored.emplace_back(pattern);
    // Of a number's names there may be none: experts of a dense model.
    if (!rule.rest() && rule.when.empty() && !rule.optional && !rule.alias &&
        rule.to.find('{') == rule.to.npos && !there.contains(pattern))
      add(rule.to, " is missing");
    known.insert(pattern);
  }
  for (const std::string& one : there)
    if (!known.contains(one) &&
        std::ranges::none_of(
            ignored, [&](const text::Glob& glob) { return glob.matches(one); }))
      add(one, " is unknown to it");
  return distance;
}

}  // namespace

Catalog names_of(const Catalog& source) {
  Catalog names;
  names.format = source.format;
  names.version = source.version;
  names.path = source.path;
  names.root = source.root;
  names.family = source.family;
  names.dialect = source.dialect;
  names.run = source.run;
  names.topology = source.topology;
  names.sidecars = source.sidecars;
  std::vector<std::string> said = trainer_config_objects();
  said.insert(said.end(), {"args", "params"});
  const bool gguf = formats::traits_of(source.format).dialect == kGguf;
  for (const Object& object : source.objects)
    if (gguf || std::ranges::find(said, object.name) != said.end())
      names.objects.push_back(object);
  for (const Tensor& tensor : source.tensors) {
    if (tensor.kind != Kind::model) continue;
    Tensor& one = names.tensors.emplace_back();
    one.name = tensor.name;
    one.dtype = tensor.dtype;
    one.shape = tensor.shape;
  }
  return names;
}

DialectAnswer ask_all_families(const Catalog& names,
                               const TranslateOptions& options) {
  Catalog canonical = names;
  try {
    megatron::to_canonical(canonical);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    return {.findings = {}, .open = error.problem()};
  }
  Patterns there;
  for (const Tensor& tensor : canonical.tensors)
    there.insert(pattern_of(tensor.name));
  std::string nearest, why;
  size_t fewest = SIZE_MAX;
  for (const std::string& name : Family::names()) {
    const Dialect* dialect = Family::by_name(name)->dialect("mcore");
    if (!dialect) continue;
    Distance distance = distance_of(*dialect, there);
    if (distance.count == 0) {
      TranslateOptions asked = options;
      asked.family = name;
      const DialectAnswer answer = ask_dialect(names, asked);
      if (answer.open.empty() && answer.findings.empty()) return {};
      distance.count = std::max<size_t>(answer.findings.size(), 1);
      distance.first =
          answer.findings.empty()
              ? answer.open
              : fmt::format("{} {}", answer.findings.front().tensor,
                            answer.findings.front().kind);
    }
    if (distance.count >= fewest) continue;
    fewest = distance.count;
    nearest = name;
    why = distance.first;
  }
  return {.findings = {},
          .open = fmt::format(
              "the model's arguments name no family, and the rules of none fit "
              "all of its tensors; the nearest is {}: {}",
              nearest, why)};
}

}  // namespace ckpt::families
