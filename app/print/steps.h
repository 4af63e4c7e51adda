// SPDX-License-Identifier: Apache-2.0
// The steps of a training root, as lists.
#pragma once

#include <string>
#include <vector>

#include "api/engine.h"
#include "api/keep/steps.h"
#include "app/options/options.h"
#include "app/print/plot.h"

namespace ckpt::app {

using library::StepRow;

// From old to new; empty if `root` is not a root. `catalog` is the step that
// was followed, or null if it could not be opened.
inline std::vector<StepRow> steps_of(const std::string& root,
                                     const SourceOptions& source,
                                     const Catalog* catalog) {
  return library::steps_of(root, source.from, source.read, catalog);
}

// "3 d", "5 h", "12 min"
std::string age_text(double seconds);

// `ls` of a root: names alone, or a table.
std::string steps_text(const std::vector<StepRow>& steps, bool all);
std::string steps_json(const std::string& root,
                       const std::vector<StepRow>& steps);

// `inspect --all`: opens each one and compares them. `engine`: reads their
// values, too; may be null.
struct StepsShown {
  std::string text;                // a document with `json`
  std::vector<NamedStats> values;  // of the model, if they were read
};
StepsShown compare_steps(const std::string& root, const SourceOptions& source,
                         const library::Engine* engine, bool json);

}  // namespace ckpt::app
