// SPDX-License-Identifier: Apache-2.0
#include "api/keep/metric.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMostNotes = uint64_t{256} << 20;

using Json = nlohmann::json;

// A trainer that stops while it evaluates leaves NaN, which is not JSON: such a
// file has no metrics here, as it has none in any strict reader.
Json state_of(const StepRow& step) {
  const std::string path = io::join(step.path, "trainer_state.json");
  if (!io::is_directory(step.path) || !io::is_file(path)) return {};
  return text::parse_or_discard(io::read_file(path, kMostNotes));
}

void add_entry(const Json& entry, const Metric& metric, Notes& notes,
               std::map<uint64_t, double>& by_number) {
  if (!entry.is_object()) return;
  const auto number = entry.find("step");
  if (number == entry.end() || !number->is_number_unsigned()) return;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_number() || key == "step" || key == "epoch") continue;
    notes.metrics.insert(key);
    const double found = value.get<double>();
    if ((key == metric.name || key == "eval_" + metric.name) &&
        std::isfinite(found))
      by_number[number->get<uint64_t>()] = found;
  }
}

}  // namespace

Metric metric_of(const std::string& option, const std::string& text) {
  const size_t colon = text.rfind(':');
  Metric metric{.name = text.substr(0, colon),
                .less_is_better = text.substr(0, colon).ends_with("loss")};
  const std::string way =
      colon == std::string::npos ? "" : text.substr(colon + 1);
  if (way == "min" || way == "max") metric.less_is_better = way == "min";
  if (metric.name.empty() ||
      (colon != std::string::npos && way != "min" && way != "max"))
    throw usage_error({}, "{} '{}': expected METRIC, METRIC:min or METRIC:max",
                      option, text::printable(text));
  return metric;
}

Notes trainer_notes(const std::vector<StepRow>& steps, const Metric& metric) {
  Notes notes;
  std::map<uint64_t, double> by_number;
  for (const StepRow& step : steps) {
    if (!step.complete) continue;
    const Json state = state_of(step);
    if (!state.is_object()) continue;
    if (const auto log = state.find("log_history");
        log != state.end() && log->is_array())
      for (const Json& entry : *log) add_entry(entry, metric, notes, by_number);
    notes.best.reset();
    const auto best = state.find("best_model_checkpoint");
    if (best == state.end() || !best->is_string()) continue;
    const std::string name = io::base_name(best->get<std::string>());
    for (size_t i = 0; i < steps.size(); ++i)
      if (io::base_name(steps[i].path) == name) notes.best = i;
  }
  for (size_t i = 0; i < steps.size(); ++i)
    if (const auto& number = steps[i].number; number)
      if (const auto value = by_number.find(*number); value != by_number.end())
        notes.values[i] = value->second;
  return notes;
}

}  // namespace ckpt::library
