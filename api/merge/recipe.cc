// SPDX-License-Identifier: Apache-2.0
#include "api/merge/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

bool has_deltas(MergeMethod method) {
  using enum MergeMethod;
  return method == kTaskArithmetic || method == kTies ||
         method == kDareLinear || method == kDareTies;
}
bool is_by_chance(MergeMethod method) {
  return method == MergeMethod::kDareLinear || method == MergeMethod::kDareTies;
}
bool is_agreeing(MergeMethod method) {
  return method == MergeMethod::kTies || method == MergeMethod::kDareTies;
}

// FNV-1a, 64 bits.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text)
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

}  // namespace

Recipe::Recipe(size_t sources, const MergeOptions& options)
    : options_(options) {
  if (!any()) return;
  const bool with_base = deltas() || method() == MergeMethod::kModelStock;
  if (with_base && !options.base)
    throw usage_error({}, "this method compares models with their base")
        .with_hint("--base PATH names the model that all were trained from");
  if (!with_base && options.base)
    throw usage_error({},
                      "a base goes with the methods that take deltas from "
                      "it, and with model_stock")
        .with_hint(
            "--method task_arithmetic, ties, dare_linear, dare_ties or "
            "model_stock; or leave --base out");
  if (with_base) order_.push_back(*options.base);
  for (size_t i = 0; i < sources; ++i)
    if (!with_base || i != *options.base) order_.push_back(i);
  const size_t models = order_.size() - (with_base ? 1 : 0);
  if (method() == MergeMethod::kSlerp && models != 2)
    throw usage_error({}, "slerp is between two models, and these are {}",
                      models);
  if (method() == MergeMethod::kModelStock && models < 2)
    throw usage_error({},
                      "model_stock takes two models or more beside the "
                      "base, and this is {}",
                      models);
  const bool weighted = deltas() || method() == MergeMethod::kLinear;
  if (!weighted && !options.weights.empty())
    throw usage_error({},
                      "weights go with linear and the methods with deltas; "
                      "slerp has its own number, and model_stock finds its");
  if (options.decay && (method() != MergeMethod::kLinear ||
                        !options.weights.empty() || options.normalize))
    throw usage_error({},
                      "the average over steps has weights of its own: it "
                      "goes with no others, and with no method");
  check_weights(models);
  check_densities(models);
  check_optimizer();
  weights_ = options.weights;
  if (weights_.empty()) weights_.assign(models, 1);
  if (options.decay) set_decay(*options.decay, models);
  if (options.decay || !weighted || !normal()) return;
  divisor_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (deltas()) {
    if (std::fabs(divisor_) < 1e-8) divisor_ = 1;
  } else if (divisor_ == 0 || !std::isfinite(divisor_)) {
    throw usage_error({},
                      "the weights add up to {}, by which the sum would be "
                      "divided",
                      divisor_)
        .with_hint("--no-normalize takes the weighted sum as it is");
  }
}

bool Recipe::deltas() const { return any() && has_deltas(method()); }

bool Recipe::normal() const {
  return options_.normalize.value_or(method() == MergeMethod::kLinear ||
                                     method() == MergeMethod::kTies);
}

size_t Recipe::frame() const {
  return any() && options_.with_optimizer ? order_.back() : 0;
}

// A mean of second moments is one; their difference may be negative.
void Recipe::check_optimizer() const {
  const bool mean =
      method() == MergeMethod::kLinear && (options_.decay || normal());
  if (!options_.with_optimizer || mean) return;
  throw usage_error({}, "moments of an optimizer have a mean, and no {}",
                    method() == MergeMethod::kLinear ? "other sum" : "such sum")
      .with_hint(
          "leave --with-optimizer out: the model alone is merged; or merge "
          "by --weights or --ema");
}

void Recipe::check_weights(size_t models) const {
  const std::vector<double>& weights = options_.weights;
  if (!weights.empty() && weights.size() != models)
    throw usage_error({}, "{} for {}", text::counted(weights.size(), "weight"),
                      text::counted(models, "model"))
        .with_hint(
            "name one for each source, in their order: --weights "
            "0.25,0.75; the base has none");
  for (size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(weights[i]))
      throw usage_error({}, "weight {} is {}", i + 1, weights[i]);
  for (size_t i = 0; i < weights.size(); ++i)
    if (!deltas() && weights[i] < 0 &&
        (!options_.normalize || options_.with_optimizer))
      throw usage_error({}, "weight {} is {}: a mean has no negative weights",
                        i + 1, weights[i])
          .with_hint(
              "--normalize divides by their sum all the same, --no-normalize "
              "takes the weighted sum as it is; --method task_arithmetic "
              "subtracts what a model learned");
}

void Recipe::check_densities(size_t models) const {
  const std::vector<double>& densities = options_.densities;
  if (densities.empty()) return;
  if (!deltas() || method() == MergeMethod::kTaskArithmetic)
    throw usage_error({},
                      "a density goes with ties, dare_linear and dare_ties");
  if (densities.size() != 1 && densities.size() != models)
    throw usage_error({}, "{} densities for {}", densities.size(),
                      text::counted(models, "model"))
        .with_hint("name one for all, or one for each model in their order");
  for (const double density : densities)
    if (!(density >= 0 && density <= 1))
      throw usage_error({}, "a density of {}: it is a share, from 0 to 1",
                        density);
}

// e = d e + (1 - d) x, beginning with the first.
void Recipe::set_decay(double decay, size_t models) {
  if (!(decay >= 0 && decay <= 1))
    throw usage_error({}, "a decay of {}: it is a share, from 0 to 1", decay);
  for (size_t i = 0; i < models; ++i)
    weights_[i] = (i == 0 ? 1 : 1 - decay) *
                  std::pow(decay, static_cast<double>(models - 1 - i));
}

Combination Recipe::combination(const std::string& tensor) const {
  Combination all{.terms = {},
                  .divisor = divisor_,
                  .exact = options_.exact,
                  .finite = !options_.allow_nonfinite};
  all.terms.resize(order_.size());
  const size_t first = order_.size() - weights_.size();
  for (size_t i = 0; i < weights_.size(); ++i)
    all.terms[first + i].weight = weights_[i];
  if (!deltas()) return all;
  all.how = Combination::How::kDeltas;
  all.agreeing = is_agreeing(method());
  all.normal = normal();
  all.lambda = options_.lambda;
  if (all.agreeing) all.divisor = 1;  // each element has its own
  if (!is_by_chance(method())) return all;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const std::vector<double>& given = options_.densities;
    const double density = given.empty() ? 1 : given[given.size() == 1 ? 0 : i];
    if (density >= 1) continue;
    all.terms[first + i].kept.emplace();
    all.terms[first + i].kept->share = density;
    all.terms[first + i].kept->seed =
        reshard::number_of(options_.seed, hash_of(tensor) + i);
  }
  return all;
}

reshard::Measure Recipe::measure() const {
  using What = reshard::Measure::What;
  reshard::Measure wanted;
  if (!any()) return wanted;
  wanted.t = options_.t;
  if (method() == MergeMethod::kSlerp) wanted.what = What::kSlerp;
  if (method() == MergeMethod::kModelStock) wanted.what = What::kStock;
  const std::vector<double>& given = options_.densities;
  const bool some = std::ranges::any_of(given, [](double d) { return d < 1; });
  if (!deltas() || !some) return wanted;
  if (method() == MergeMethod::kTies) wanted.what = What::kLargest;
  for (size_t i = 0; i < weights_.size(); ++i)
    wanted.densities.push_back(given[given.size() == 1 ? 0 : i]);
  wanted.rescale = options_.rescale.value_or(is_by_chance(method()));
  return wanted;
}

std::string Recipe::name() const {
  static constexpr const char* kNames[] = {
      "linear",      "slerp",     "task_arithmetic", "ties",
      "dare_linear", "dare_ties", "model_stock"};
  return fmt::format("{} sources by {}", order_.size(),
                     kNames[static_cast<size_t>(method())]);
}

// All that the elements depend on: a journal tells by it whether the work is
// the same.
std::string Recipe::text() const {
  return fmt::format(
      "method {} order {} weights {} divisor {} lambda {} t {} "
      "densities {} {}{}{} seed {} {}",
      static_cast<int>(method()), fmt::join(order_, ","),
      fmt::join(weights_, ","), divisor_, options_.lambda, options_.t,
      fmt::join(options_.densities, ","), normal() ? "n" : "",
      options_.rescale ? "r" : "", options_.rescale.value_or(false) ? "r" : "",
      options_.seed, options_.exact ? "f64" : "f32");
}

}  // namespace ckpt::library
