// SPDX-License-Identifier: Apache-2.0
// The steps of a training root, for listings: by a known trainer's rule
// (formats/runs), else all that are named like the step that was followed.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "app/options/options.h"

namespace ckpt::app {

struct StepRow {
  std::string name;  // relative to the root
  std::string path;
  std::optional<uint64_t> number;
  std::string trainer;  // "" if none is known
  std::string format;   // then this; "" if no format takes it
  uint64_t bytes = 0;
  time_t saved = 0;                // when it was last written to; 0: not known
  std::vector<std::string> parts;  // "model", "optim" …
  bool complete = false;
  std::string why;  // if it is not
};

// From old to new; empty if `root` is not a root. `catalog` is the step that
// was followed, or null if it could not be opened.
std::vector<StepRow> steps_of(const std::string& root,
                              const SourceOptions& source,
                              const Catalog* catalog);

// "3 d", "5 h", "12 min"
std::string age_text(double seconds);

// `ls` of a root: names alone, or a table.
std::string steps_text(const std::vector<StepRow>& steps, bool all);
std::string steps_json(const std::string& root,
                       const std::vector<StepRow>& steps);

// `inspect --all`: opens each one and compares them.
std::string compare_steps(const std::string& root, const SourceOptions& source,
                          bool json);

}  // namespace ckpt::app
