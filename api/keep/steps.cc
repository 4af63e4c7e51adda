// SPDX-License-Identifier: Apache-2.0
#include "api/keep/steps.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "formats/runs/find/find.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/session.h"

namespace ckpt::library {
namespace {

// Adds what is in a directory, but not what is behind links.
void add_files(StepRow& step) {
  constexpr size_t kMostFiles = 1'000'000;
  namespace fs = std::filesystem;
  if (io::is_url(step.path)) {
    if (io::is_directory(step.path))
      for (const auto& file : io::files_below(step.path))
        step.bytes += file.bytes;
    return;  // servers need not tell when
  }
  std::error_code failed;
  size_t left = kMostFiles;
  time_t newest = 0;
  for (fs::recursive_directory_iterator at(step.path, failed), end;
       !failed && at != end && left > 0; at.increment(failed), --left) {
    const std::string path = at->path().string();
    if (io::is_lost_and_found(path)) at.disable_recursion_pending();
    struct stat facts;
    if (io::is_link(path) || !io::stat_any(path, facts) ||
        !S_ISREG(facts.st_mode))
      continue;
    step.bytes += static_cast<uint64_t>(facts.st_size);
    newest = std::max(newest, facts.st_mtime);
  }
  if (failed)
    failures::note(io_error(step.path, "cannot list", failed.value()));
  step.saved = newest;
}

std::string format_of(const std::string& path) {
  try {
    return std::string(formats::detect(path).format->name);
  } catch (const Error&) {
    return {};
  }
}

// Entries named like the chosen step, except for the number at the end.
std::vector<StepRow> named_alike(const Catalog& catalog, size_t least) {
  const std::string inside = catalog.root + "/";
  if (catalog.root.empty() || !catalog.path.starts_with(inside)) return {};
  const std::string rest = catalog.path.substr(inside.size());
  const std::string chosen = rest.substr(0, rest.find('/'));
  const size_t digits = chosen.find_last_not_of("0123456789") + 1;
  if (digits == chosen.size()) return {};
  std::vector<StepRow> steps;
  for (const std::string& name : io::list_directory(catalog.root)) {
    if (name.size() <= digits || name.size() > digits + 18 ||
        !name.starts_with(chosen.substr(0, digits)) ||
        name.find_first_not_of("0123456789", digits) != name.npos)
      continue;
    steps.push_back({.name = name,
                     .path = io::join(catalog.root, name),
                     .number = std::stoull(name.substr(digits)),
                     .trainer = {},
                     .format = {},
                     .parts = {},
                     .why = {}});
  }
  if (steps.size() < least) return {};
  for (StepRow& step : steps) {
    step.format = format_of(step.path);
    step.complete = !step.format.empty();
    if (!step.complete) step.why = "no format that is known";
    add_files(step);
  }
  std::ranges::sort(steps, {}, &StepRow::number);
  return steps;
}

std::string relative(const std::string& path, const std::string& root) {
  const std::string inside = root.ends_with('/') ? root : root + "/";
  return path.starts_with(inside) ? path.substr(inside.size()) : path;
}

}  // namespace

std::vector<StepRow> steps_of(const std::string& root, const std::string& from,
                              const formats::ReadOptions& read,
                              const Catalog* catalog, size_t least) {
  std::vector<StepRow> steps;
  if (from.empty() && read.trainer != "none")
    for (runs::Step& step : runs::list_steps(root, read.trainer))
      steps.push_back({.name = relative(step.path, root),
                       .path = step.path,
                       .number = step.number,
                       .trainer = step.trainer,
                       .format = {},
                       .bytes = step.bytes,
                       .saved = time_t{step.seconds},
                       .parts = std::move(step.parts),
                       .complete = step.complete,
                       .why = std::move(step.why)});
  if (steps.empty() && catalog != nullptr) return named_alike(*catalog, least);
  return steps;
}

std::vector<StepRow> steps_in(const std::string& root, const std::string& from,
                              const formats::ReadOptions& read) {
  std::vector<StepRow> steps = steps_of(root, from, read, nullptr);
  if (!steps.empty()) return steps;
  const Catalog newest = formats::open(root, from, read);
  return steps_of(root, from, read, &newest, 1);
}

void open_step(StepRow& row, const std::string& from,
               const formats::ReadOptions& read) {
  if (!row.complete) return;
  const Session::Own session;
  const uint64_t mark = failures::mark();
  try {
    const Catalog catalog = formats::open(row.path, from, read);
    for (const Problem& problem : catalog.problems)
      if (problem.severity == Problem::Severity::kDamage && row.complete) {
        row.complete = false;
        row.why = problem.message;
      }
  } catch (const Error& error) {
    if (error.code() == ExitCode::kResource) throw;
    if (const auto failed = failures::since(mark, row.path)) throw *failed;
    row.complete = false;
    row.why = error.problem();
  }
}

Error not_a_root(const std::string& root) {
  return usage_error({root, {}}, "is not a root of steps")
      .with_hint("name the directory that the steps are in");
}

time_t last_change(const std::string& directory) {
  StepRow all;
  all.path = directory;
  add_files(all);
  return all.saved;
}

}  // namespace ckpt::library
