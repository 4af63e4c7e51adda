// SPDX-License-Identifier: Apache-2.0
#include "app/options/source.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <map>

#include "app/print/console.h"
#include "ckpt/error.h"
#include "formats/tried.h"
#include "lib/io/file.h"

namespace ckpt::app {

// Problems come in thousands when they come: each kind has one line, with a
// count.
void log_problems(const std::vector<Problem>& problems) {
  const auto is_note = [](const Problem& problem) {
    return problem.severity == Problem::Severity::kNote;
  };
  std::map<std::string, uint64_t> counts, said;
  for (const Problem& problem : problems)
    if (!is_note(problem)) ++counts[problem.kind];
  for (const Problem& problem : problems) {
    const bool note = is_note(problem);
    if (!note && ++said[problem.kind] > 1) continue;
    const uint64_t more = note ? 0 : counts[problem.kind] - 1;
    const Error text(ExitCode::kDamaged, {problem.file, problem.tensor},
                     problem.message);
    spdlog::log(note ? spdlog::level::info : spdlog::level::warn, "{}{}",
                text.what(),
                more == 0 ? ""
                          : fmt::format(" (and {} more like it; --json lists "
                                        "all)",
                                        more));
  }
}

namespace {

// How many entries of a directory are named as this one, but for the number at
// the end: step_10, step_20 …
uint64_t siblings(const std::string& directory, const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  if (digits == name.size()) return 1;
  uint64_t count = 0;
  for (const std::string& other : io::list_directory(directory))
    if (other.size() > digits && other.starts_with(name.substr(0, digits)) &&
        other.find_first_not_of("0123456789", digits) == other.npos)
      ++count;
  return count;
}

// A root of several steps: the first line says which one is meant.
void say_choice(const Catalog& catalog) {
  const std::string inside = catalog.root + "/";
  if (catalog.root.empty() || !catalog.path.starts_with(inside)) return;
  // At -v the assumptions say it.
  if (spdlog::should_log(spdlog::level::info)) return;
  const std::string rest = catalog.path.substr(inside.size());
  const std::string name = rest.substr(0, rest.find('/'));
  const uint64_t steps = siblings(catalog.root, name);
  if (steps > 1)
    say_note(fmt::format("{} holds {} steps; this is {}", catalog.root, steps,
                         name));
}

}  // namespace

Catalog open_source(const std::string& path, const SourceOptions& options) {
  Catalog catalog;
  try {
    catalog = formats::open(path, options.from, options.read);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kMissing && options.from.empty() &&
        error.where().path == path && spdlog::should_log(spdlog::level::info) &&
        (io::is_file(path) || io::is_directory(path)))
      for (const std::string& line : formats::tried_formats(path))
        spdlog::info("{}", line);
    throw;
  }
  say_choice(catalog);
  log_problems(catalog.problems);
  for (const std::string& assumption : catalog.assumptions)
    spdlog::info("{}", assumption);
  return catalog;
}

}  // namespace ckpt::app
