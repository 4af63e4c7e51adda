// SPDX-License-Identifier: Apache-2.0
#include "app/options/adapter.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <utility>

#include "app/options/read_paths.h"
#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

void say_of_adapter(const Problem& problem) {
  std::string line;
  for (const std::string& where : {problem.file, problem.tensor})
    if (!where.empty()) line += text::printable(where) + ": ";
  line += problem.message;
  if (problem.severity == Problem::Severity::kNote)
    spdlog::info("{}", text::printable(line));
  else
    spdlog::warn("{}", line);
}

}  // namespace

void add_adapter_options(CLI::App& app, AdapterChoice& options) {
  const char* group = "Adapters";
  names_either(
      app.add_option("--adapter", options.paths,
                     "A LoRA adapter to add to the weights, of any library "
                     "and in any format; several in order"))
      ->type_name("PATH")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--adapter-weight", options.weights,
                 "How much of it, 1 if not given; one for each --adapter")
      ->type_name("W")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--adapter-alpha", options.alpha,
                 "Its alpha, in the place of what its files say: the scale is "
                 "alpha / rank")
      ->type_name("N")
      ->group(group);
  app.add_flag("--allow-nonfinite", options.allow_nonfinite,
               "Add an adapter with NaN or infinite values, or sums of them")
      ->group(group);
}

std::vector<AdapterUse> uses_of(const AdapterChoice& choice) {
  if (!choice.weights.empty() && choice.weights.size() != choice.paths.size())
    throw usage_error({}, "--adapter-weight is given {}, --adapter {}",
                      text::counted(choice.weights.size(), "time"),
                      text::counted(choice.paths.size(), "time"));
  std::vector<AdapterUse> uses;
  for (const std::string& path : choice.paths) uses.push_back({.path = path});
  for (size_t i = 0; i < choice.weights.size(); ++i)
    uses[i].weight = choice.weights[i];
  return uses;
}

AdapterOptions library_options(const AdapterChoice& choice, Naming naming) {
  return {.alpha = choice.alpha,
          .allow_nonfinite = choice.allow_nonfinite,
          .naming = std::move(naming),
          .note = say_of_adapter};
}

}  // namespace ckpt::app
