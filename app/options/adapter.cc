// SPDX-License-Identifier: Apache-2.0
#include "app/options/adapter.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "app/keep.h"
#include "app/options/read_paths.h"
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

void add_adapter_options(CLI::App& app, AdapterOptions& options) {
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

void add_adapters(Catalog& base, AdapterOptions options,
                  const families::TranslateOptions& names) {
  options.note = say_of_adapter;
  library::add_adapters(base, options, names, keep(library::Added{}));
}

void add_inside(Catalog& base, Catalog adapter, AdapterOptions options,
                const families::TranslateOptions& names) {
  options.note = say_of_adapter;
  library::add_inside(base, std::move(adapter), options, names,
                      keep(library::Added{}));
}

}  // namespace ckpt::app
