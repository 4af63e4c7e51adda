// SPDX-License-Identifier: Apache-2.0
// What of a run's folder refers to its steps: symbolic links, and small files
// that name one, as trainers' trackers do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/keep/steps.h"

namespace ckpt::library {

// What a step that is being deleted is called: .NAME.ckpt-pruned.
inline constexpr std::string_view kPrunedEnding = ".ckpt-pruned";

struct Reference {
  std::string from;  // the link or the file, relative to the root
  size_t to = 0;     // the step's index
  // The step that the link is in; none: it is the root's.
  std::optional<size_t> owner;
};

// All of them. No link is followed to look behind it. Throws kIo for a folder
// that can't be listed: then nobody knows what refers to what.
std::vector<Reference> references(const std::string& root,
                                  const std::vector<StepRow>& steps);

// The same of the root's own entries alone, for one step: "latest names it", ""
// if none does. Quick, to be asked again just before a step goes.
std::string named_by_root(const std::string& root, const StepRow& step);

// True if the path leads to the step without passing a link below the root.
bool is_own(const std::string& root, const StepRow& step);

}  // namespace ckpt::library
