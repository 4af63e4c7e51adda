// SPDX-License-Identifier: Apache-2.0
// What a trainer noted about its steps in trainer_state.json:
//
//   {"best_model_checkpoint": "out/checkpoint-30", "log_history": [
//     {"step": 30, "eval_loss": 1.25, "eval_accuracy": 0.5}, …]}
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/keep/steps.h"

namespace ckpt::library {

struct Metric {
  std::string name;
  bool less_is_better = true;
};
// "eval_loss", "eval_accuracy:max" as the option `option`.
Metric metric_of(const std::string& option, const std::string& text);

struct Notes {
  std::map<size_t, double> values;  // of the metric, by the step's index
  std::set<std::string> metrics;    // that any step has
  std::optional<size_t> best;       // that the newest of them names
};
Notes trainer_notes(const std::vector<StepRow>& steps, const Metric& metric);

}  // namespace ckpt::library
