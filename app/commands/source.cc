// SPDX-License-Identifier: Apache-2.0
#include "app/commands/source.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>

#include "app/print/console.h"
#include "ckpt/error.h"
#include "formats/tried.h"
#include "formats/unrecognized.h"
#include "lib/io/file.h"

namespace ckpt::app {

// If there are problems, there are thousands: each kind gets one line with a
// count.
void log_problems(const std::vector<Problem>& problems) {
  const auto is_note = [](const Problem& problem) {
    return problem.severity == Problem::Severity::kNote;
  };
  const bool all = spdlog::should_log(spdlog::level::debug);  // -vv
  std::map<std::string, uint64_t> counts, said;
  for (const Problem& problem : problems)
    if (!is_note(problem)) ++counts[problem.kind];
  for (const Problem& problem : problems) {
    const bool note = is_note(problem);
    if (!note && !all && ++said[problem.kind] > 1) continue;
    const uint64_t more = note || all ? 0 : counts[problem.kind] - 1;
    const Error text(ExitCode::kDamaged, {problem.file, problem.tensor},
                     problem.message);
    spdlog::log(note ? spdlog::level::info : spdlog::level::warn, "{}{}",
                text.what(),
                more == 0 ? ""
                          : fmt::format(" (and {} more like it; -vv lists "
                                        "all)",
                                        more));
  }
}

namespace {

// How many entries of a directory are named like this one, except for the
// number at the end: step_10, step_20 …
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

// For a root of several steps, the first line says which one is meant.
void say_choice(const Catalog& catalog) {
  const std::string inside = catalog.root + "/";
  if (catalog.root.empty() || !catalog.path.starts_with(inside)) return;
  // With -v, the assumptions say it.
  if (spdlog::should_log(spdlog::level::info)) return;
  const std::string rest = catalog.path.substr(inside.size());
  const std::string name = rest.substr(0, rest.find('/'));
  const uint64_t steps = siblings(catalog.root, name);
  if (steps > 1)
    say_note(fmt::format("{} holds {} steps; this is {}", catalog.root, steps,
                         name));
}

// "model-00001-of-00002.safetensors" alone: whoever opens it means the model.
void say_part(const std::string& path) {
  constexpr std::string_view kOf = "-of-";
  const std::string name = io::base_name(path);
  const size_t at = name.rfind(kOf);
  if (at == name.npos || !io::is_file(path)) return;
  const size_t dash = name.rfind('-', at - std::min<size_t>(at, 1));
  const size_t dot = name.find('.', at);
  if (dash == name.npos || dot == name.npos) return;
  const std::string number = name.substr(dash + 1, at - dash - 1);
  const std::string count = name.substr(at + kOf.size(), dot - at - kOf.size());
  const auto digits = [](const std::string& text) {
    return !text.empty() && text.size() < 9 &&
           text.find_first_not_of("0123456789") == text.npos;
  };
  if (!digits(number) || !digits(count) || std::stoul(count) < 2) return;
  say_note(fmt::format("{} is file {} of {}; the whole is {}", name,
                       std::stoul(number), std::stoul(count),
                       io::parent(path)));
}

// The error is in a directory that may not have been meant: a file left among a
// project's runs, say.
[[noreturn]] void throw_with_others(const Error& error,
                                    const std::string& path) {
  std::string hint = error.hint();
  if (error.where().path != path && io::is_directory(path))
    if (const std::string below =
            formats::checkpoints_below(path, error.where().path);
        !below.empty())
      hint += (hint.empty() ? "" : "; ") + below;
  throw Error(error.code(), error.where(), error.problem(), hint);
}

bool exists(const std::string& path) {
  try {
    return io::is_file(path) || io::is_directory(path);
  } catch (const Error&) {
    return false;  // a device, say: already reported
  }
}

Catalog open_any(const std::string& path, const SourceOptions& options) {
  try {
    return formats::open(path, options.from, options.read);
  } catch (const Error& error) {
    if (!exists(path)) throw;
    if (error.code() == ExitCode::kDamaged) throw_with_others(error, path);
    if (error.code() != ExitCode::kMissing || error.where().path != path) throw;
    if (!options.from.empty() && error.hint().empty())
      throw Error(error.code(), error.where(), error.problem(),
                  "without --from the format is detected");
    if (options.from.empty() && spdlog::should_log(spdlog::level::info))
      for (const std::string& line : formats::tried_formats(path))
        spdlog::info("{}", line);
    throw;
  }
}

}  // namespace

Catalog open_source(const std::string& path, const SourceOptions& options) {
  Catalog catalog = open_any(path, options);
  say_choice(catalog);
  say_part(path);
  log_problems(catalog.problems);
  for (const std::string& assumption : catalog.assumptions)
    spdlog::info("{}", assumption);
  return catalog;
}

}  // namespace ckpt::app
