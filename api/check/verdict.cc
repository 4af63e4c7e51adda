// SPDX-License-Identifier: Apache-2.0
// What a report comes to, in one word.
#include <algorithm>
#include <string_view>

#include "api/check/integrity.h"

namespace ckpt {

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarnings:
      return "warnings";
    case Verdict::kCantTell:
      return "cant_tell";
    case Verdict::kIncomplete:
      return "incomplete";
    case Verdict::kMismatch:
      return "mismatch";
    case Verdict::kDamaged:
      return "damaged";
    case Verdict::kUnsafe:
      return "unsafe";
  }
  return "damaged";
}

namespace library {
namespace {

// Kinds of problems that are no damage to bytes.
struct Meaning {
  std::string_view kind;
  Verdict verdict;
};
constexpr Meaning kMeanings[] = {
    {"executes", Verdict::kUnsafe},
    {"unreadable_pickle", Verdict::kUnsafe},
    {"missing_tensor", Verdict::kIncomplete},
    {"empty_tensor", Verdict::kIncomplete},
    {"layer_gap", Verdict::kIncomplete},
    {"lost_layers", Verdict::kIncomplete},
    {"missing_file", Verdict::kIncomplete},
    {"missing_rank", Verdict::kIncomplete},
    {"missing_part", Verdict::kIncomplete},
    {"incomplete", Verdict::kIncomplete},
    {"no_tensors", Verdict::kIncomplete},
    {"unknown_tensor", Verdict::kMismatch},
    {"wrapped_names", Verdict::kMismatch},
    {"refused_pickle", Verdict::kMismatch},
    {"shape", Verdict::kMismatch},
    {"dtype", Verdict::kMismatch},
    {"configuration", Verdict::kMismatch},
    {"total_size", Verdict::kMismatch},
};

Verdict meaning_of(const Problem& problem) {
  // An index that is wrong about the bytes fails whatever reads it.
  if (problem.severity != Problem::Severity::kDamage &&
      problem.kind != "total_size")
    return is_remark(problem) ? Verdict::kOk : Verdict::kWarnings;
  const auto* found =
      std::ranges::find(kMeanings, problem.kind, &Meaning::kind);
  return found == std::end(kMeanings) ? Verdict::kDamaged : found->verdict;
}

}  // namespace

bool is_remark(const Problem& problem) {
  constexpr std::string_view kKinds[] = {"absent_part", "checksums", "delta",
                                         "repository"};
  return std::ranges::find(kKinds, problem.kind) != std::end(kKinds);
}

void judge(Report& report, bool strict) {
  Verdict worst = report.open.empty() ? Verdict::kOk : Verdict::kCantTell;
  for (const Problem& problem : report.problems)
    worst = std::max(worst, meaning_of(problem));
  report.verdict = worst;
  report.ok =
      worst == Verdict::kOk || (worst < Verdict::kIncomplete && !strict);
}

}  // namespace library
}  // namespace ckpt
