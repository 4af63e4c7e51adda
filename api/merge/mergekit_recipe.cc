// SPDX-License-Identifier: Apache-2.0
#include "api/merge/mergekit_recipe.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::mergekit {

using text::printable;

std::optional<double> Setting::at(std::string_view tensor, double t) const {
  for (const Rule& rule : rules) {
    if (tensor.find(rule.filter) == tensor.npos) continue;
    const double scaled = t * static_cast<double>(rule.values.size() - 1);
    const auto low = static_cast<size_t>(scaled);
    const size_t high = std::min(rule.values.size() - 1, low + 1);
    const double share = scaled - static_cast<double>(low);
    return (1 - share) * rule.values[low] + share * rule.values[high];
  }
  return std::nullopt;
}

namespace {

bool all_plain(const Settings& settings) {
  return std::ranges::all_of(settings,
                             [](const auto& one) { return one.second.plain; });
}

}  // namespace

bool Recipe::is_plain() const {
  return method && slices.size() == 1 && slices[0].end == 0 &&
         all_plain(settings) && all_plain(slices[0].settings) &&
         std::ranges::all_of(slices[0].sources, [](const Source& source) {
           return all_plain(source.settings);
         });
}

// mergekit has tables of what comes before the layers of each architecture, and
// what behind them.
const Slice& Recipe::slice_of(const std::string& tensor,
                              std::optional<uint32_t> layer,
                              uint64_t layers) const {
  if (slices.back().end != 0 && slices.back().end != layers)
    throw unfaithful_error(
        {path, {}}, "the slices have {} layers together, and the model has {}",
        slices.back().end, layers)
        .with_hint(
            "ckpt merges whole models; mergekit makes models with fewer or "
            "more layers");
  if (slices.size() == 1) return slices.front();
  if (layer)
    return *std::ranges::find_if(
        slices, [&](const Slice& slice) { return *layer < slice.end; });
  const auto has = [&](const auto&... words) {
    return ((tensor.find(words) != tensor.npos) || ...);
  };
  if (has("embed", "wte", "wpe")) return slices.front();
  if (has("norm", "lm_head", "ln_f")) return slices.back();
  throw unfaithful_error({path, printable(tensor)},
                         "is in no layer, so no slice says what it is made of")
      .with_hint("models: instead of slices: merges whole models");
}

MergeNumbers Recipe::numbers(const std::string& tensor,
                             std::optional<uint32_t> layer,
                             uint64_t layers) const {
  const Slice& slice = slice_of(tensor, layer, layers);
  const uint64_t count = slice.end == 0 ? layers : slice.end - slice.begin;
  double t = 0;
  if (layer)
    t = count > 1 ? static_cast<double>(*layer - slice.begin) /
                        static_cast<double>(count - 1)
                  : 1;
  const auto shared = [&](std::string_view name) -> std::optional<double> {
    for (const Settings* all : {&slice.settings, &settings})
      if (const auto found = all->find(name); found != all->end())
        if (const auto value = found->second.at(tensor, t)) return value;
    return std::nullopt;
  };
  MergeNumbers numbers;
  if (!method) {
    numbers.take = slice.sources.front().model;
    return numbers;
  }
  const auto flag = [&](std::string_view name) -> std::optional<bool> {
    const auto value = shared(name);
    return value ? std::optional(*value != 0) : std::nullopt;
  };
  numbers.lambda = shared("lambda").value_or(1);
  numbers.normalize = flag("normalize");
  if (method == MergeMethod::kLinear && !numbers.normalize)
    numbers.normalize = true;  // negative weights, too
  numbers.rescale = flag("rescale");
  if (method == MergeMethod::kSlerp) {
    const auto between = shared("t");
    if (!between)
      throw usage_error({path, printable(tensor)},
                        "slerp's parameter t has no value for it");
    numbers.t = *between;
    return numbers;
  }
  if (method == MergeMethod::kModelStock) return numbers;
  std::vector<std::optional<double>> weights(models), densities(models);
  for (const Source& source : slice.sources) {
    const auto own = [&](std::string_view name) -> std::optional<double> {
      if (const auto found = source.settings.find(name);
          found != source.settings.end())
        if (const auto value = found->second.at(tensor, t)) return value;
      return shared(name);
    };
    weights[source.model] = own("weight");
    densities[source.model] = own("density").value_or(1);
  }
  const bool thins = has_deltas() && method != MergeMethod::kTaskArithmetic;
  for (size_t model = 0; model < models; ++model) {
    if (has_deltas() && model == base) continue;
    if (!weights[model])
      throw usage_error({path, printable(tensor)},
                        "parameter weight has no value for model {}", model + 1)
          .with_hint("each model has a weight, or parameters: has one for all");
    numbers.weights.push_back(*weights[model]);
    if (thins) numbers.densities.push_back(*densities[model]);
  }
  return numbers;
}

}  // namespace ckpt::mergekit
