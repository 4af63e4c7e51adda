// SPDX-License-Identifier: Apache-2.0
// The question's answer as an error.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "convert/rules/mismatches.h"
#include "convert/whole/whole.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"

namespace ckpt::families {
namespace {

// "3 tensors missing: a, b, …; "; of what has no count of its own, the message.
void add_kind(const std::vector<Problem>& problems, std::string_view kind,
              std::string_view what, std::string& text) {
  constexpr uint64_t kListed = 5;
  std::string listed;
  uint64_t count = 0;
  for (const Problem& problem : problems) {
    if (problem.kind != kind || problem.severity != Problem::Severity::kDamage)
      continue;
    if (++count > kListed) continue;
    listed += (listed.empty() ? "" : ", ") + problem.tensor;
    const size_t near = problem.message.find(kNearestMissing);
    if (kind == "unknown_tensor" && near != problem.message.npos)
      listed +=
          fmt::format(" (nearest: {})",
                      problem.message.substr(near + kNearestMissing.size()));
    if (kind == "shape" || what.empty())
      listed += (problem.tensor.empty() ? "" : " ") + problem.message;
  }
  if (count == 0) return;
  text += fmt::format(
      "{}{}{}{}", text.empty() ? "" : "; ",
      what.empty()
          ? ""
          : fmt::format("{} {}: ", text::counted(count, "tensor"), what),
      listed, count > kListed ? ", …" : "");
}

// What helps against any of these, and no more: the same command with an option
// that changes nothing would fail again.
std::string hint_of(const std::vector<Problem>& problems) {
  const auto has = [&](std::string_view kind) {
    return std::ranges::any_of(problems, [&](const Problem& problem) {
      return problem.kind == kind &&
             problem.severity == Problem::Severity::kDamage;
    });
  };
  std::string hint = "`ckpt verify` lists all";
  if (has("unknown_tensor"))
    hint +=
        "; --rename brings names to others, --exclude GLOB leaves out what "
        "has no place";
  if (has("missing_tensor") || has("missing_part") || has("layer_gap"))
    hint += "; --allow-missing GLOB does without what is missing";
  if (std::ranges::any_of(problems, [](const Problem& problem) {
        return problem.kind == "shape" &&
               problem.message.find(kVocabularyHas) != problem.message.npos;
      }))
    hint += "; --vocab-size N takes either number of rows";
  for (const Problem& problem : problems) {
    if (problem.kind != "wrapped_names" || !problem.tensor.empty()) continue;
    const size_t begin = problem.message.find('"') + 1;
    const size_t end = problem.message.find('"', begin);
    hint += problem.message.ends_with(kAskedWithout)
                ? "; --to hf writes the names without"
                : fmt::format(
                      "; --rename {} takes the names without",
                      text::shell_word(
                          problem.message.substr(begin, end - begin) + "="));
  }
  return hint;
}

// What the list of a pipeline's models names and its folder lacks.
std::vector<Problem> lost_components(const Catalog& source,
                                     const TranslateOptions& options) {
  std::vector<Problem> lost;
  if (!source.run || source.run->components.empty()) return lost;
  const Globs allowed(options.allow_missing);
  for (Problem problem : source.problems) {
    const std::string folder(io::base_name(problem.file));
    if (problem.kind != "missing_part" ||
        problem.severity != Problem::Severity::kDamage ||
        allowed.match(folder + "."))
      continue;
    problem.tensor = folder + ":";
    lost.push_back(std::move(problem));
  }
  return lost;
}

}  // namespace

void need_whole(const Catalog& source, const TranslateOptions& options) {
  Whole whole = check_whole(source, options);
  for (Problem& lost : lost_components(source, options))
    whole.problems.push_back(std::move(lost));
  if (whole.sound()) return;
  // What claims to be of the model explains what is missing.
  std::string text;
  for (const auto& [kind, what] :
       {std::pair("unknown_tensor", "that the model has no place for"),
        std::pair("shape", "of another shape"),
        std::pair("dtype", "of another kind of dtype"),
        std::pair("empty_tensor", "without elements"),
        std::pair("missing_tensor", "missing"), std::pair("layer_gap", ""),
        std::pair("wrapped_names", ""), std::pair("configuration", ""),
        std::pair("missing_part", "")})
    add_kind(whole.problems, kind, what, text);
  throw unfaithful_error({source.path, {}},
                         "is not the whole model that its configuration "
                         "describes: {}",
                         text::printable(text))
      .with_hint(hint_of(whole.problems));
}

}  // namespace ckpt::families
