// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/find.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/unfinished.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/runs/read/checks.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"

namespace ckpt::runs {
namespace {

namespace fs = std::filesystem;

// Adds up the bytes of all files below, not following links, and finds the time
// of the last change.
void measure(const std::string& path, Step& step) {
  constexpr size_t kMostFiles = 1'000'000;
  if (io::is_url(path)) {
    if (!io::is_directory(path)) {
      step.bytes += io::file_size(path).value_or(0);
      return;
    }
    for (const auto& file : io::files_below(path)) step.bytes += file.bytes;
    return;
  }
  std::error_code failed;
  const auto add = [&](const fs::directory_entry& entry) {
    struct stat facts;
    if (!io::stat_any(entry.path(), facts) || !S_ISREG(facts.st_mode)) return;
    step.bytes += static_cast<uint64_t>(facts.st_size);
    step.seconds = std::max<int64_t>(step.seconds, facts.st_mtim.tv_sec);
  };
  if (!fs::is_directory(path, failed)) return add(fs::directory_entry(path));
  size_t count = 0;
  fs::recursive_directory_iterator it(
      path, fs::directory_options::skip_permission_denied, failed);
  for (; !failed && it != fs::recursive_directory_iterator();
       it.increment(failed)) {
    if (++count > kMostFiles) break;
    add(*it);
  }
  if (failed) failures::note(io_error(path, "cannot list", failed.value()));
}

bool has_files(const std::string& folder) {
  return io::is_directory(folder) && !io::list_directory(folder).empty();
}

// The name of a container of all parts does not tell whether it has an
// optimizer.
void add_sole(const Sole& sole, const std::string& folder,
              std::set<std::string>& parts) {
  if (sole.format.empty()) return;
  if (sole.at.empty() || !names_like(folder, sole.at + "/").empty())
    parts.insert("model");
  for (const Sole::More& one : sole.more)
    if (has_files(io::join(folder, one.at))) parts.insert(one.part);
  if (!sole.weights.empty())
    for (const char* name :
         {"model.safetensors", "model.safetensors.index.json"})
      if (io::is_file(io::join(io::join(folder, sole.weights), name)))
        parts.insert("model");
}

// Which parts of a step exist, judging by file names.
std::vector<std::string> parts_of(const Trainer& trainer,
                                  const std::string& folder) {
  std::set<std::string> parts;
  if (is_exported(trainer, folder)) parts.insert("model");
  std::vector<std::string> folders{folder};
  for (const std::string& role : roles_in(trainer, folder))
    folders.push_back(io::join(folder, role));
  for (const std::string& one : folders) {
    for (const Source& source : trainer.models)
      if (!names_like(one, source.file).empty()) {
        parts.insert("model");
        if (!source.optimizers.empty()) parts.insert("optim");
      }
    for (const Source& source : trainer.optimizers)
      if (!names_like(one, source.file).empty()) parts.insert("optim");
    for (const Part& part : trainer.parts)
      if (!names_like(one, part.file).empty()) parts.insert(part.part);
    add_sole(trainer.sole, one, parts);
  }
  return {parts.begin(), parts.end()};
}

// Containers that lack what is written last, or a rank's file.
std::string broken_source(const Source& source, const std::string& folder) {
  constexpr std::string_view kIndex = "/.metadata";
  if (source.read == "ranks") {
    try {
      rank_files(folder, source.file);
    } catch (const Error& error) {
      return fmt::format("{}: {}", io::base_name(error.where().path),
                         error.problem());
    }
  }
  if (!source.file.ends_with(kIndex)) return {};
  const std::string pattern =
      source.file.substr(0, source.file.size() - kIndex.size() + 1);
  for (const Name& name : names_like(folder, pattern))
    if (lacks_index(io::join(folder, name.path)))
      return "no .metadata in " + name.path;
  return {};
}

// Why the trainer would not resume from a step; empty if it would.
std::string unfinished(const Trainer& trainer, const Candidate& one,
                       std::optional<uint64_t> tracked) {
  if (std::string why = why_unfinished(trainer, one.path); !why.empty())
    return why;
  const auto found = step_at(trainer, one.path);
  if (!found) return "no " + as_glob(lacks(trainer, one.path));
  // A newer one than a link leads to may be whole.
  if (tracked && !trainer.tracker.empty() && one.number &&
      *one.number > *tracked)
    return fmt::format("newer than {} says: {}", trainer.tracker, *tracked);
  if (!io::is_directory(one.path)) return {};
  std::vector<std::string> folders = found->roles;
  if (folders.empty()) folders.emplace_back();
  for (const std::string& role : folders)
    for (const auto* sources : {&trainer.models, &trainer.optimizers})
      for (const Source& source : *sources) {
        const std::string folder =
            role.empty() ? one.path : io::join(one.path, role);
        if (std::string why = broken_source(source, folder); !why.empty())
          return why;
      }
  return {};
}

Step describe(const Trainer& trainer, const Candidate& one,
              std::optional<uint64_t> wanted) {
  Step step{.path = one.path,
            .number = one.number,
            .trainer = trainer.name,
            .bytes = 0,
            .seconds = 0,
            .parts = {},
            .complete = false,
            .why = {}};
  if (io::leads_nowhere(one.path)) {
    step.why = "a link that leads nowhere";
    return step;
  }
  measure(one.path, step);
  step.parts = io::is_directory(one.path)
                   ? parts_of(trainer, one.path)
                   : std::vector<std::string>{"model", "optim"};
  step.why = unfinished(trainer, one, wanted);
  if (step.why.empty() &&
      std::ranges::find(step.parts, "model") == step.parts.end())
    step.why = "no model";
  step.complete = step.why.empty();
  return step;
}

}  // namespace

namespace {

// Candidates by the first pattern that has steps; rather one with others than
// the last ones, whose names have no pattern of their own.
std::vector<Candidate> steps_of(const Trainer& trainer,
                                const std::string& root) {
  for (const bool with_last : {false, true})
    for (const std::string& pattern : trainer.steps) {
      auto all = candidates(trainer, root, pattern);
      if (std::ranges::any_of(all, [&](const Candidate& one) {
            return one.last <= with_last && step_at(trainer, one.path);
          }))
        return all;
    }
  return {};
}

}  // namespace

// A root of two trainers has the steps of each.
std::vector<Step> list_steps(const std::string& root, const std::string& only) {
  std::vector<Step> steps;
  if (!io::is_directory(root)) return steps;
  for (const Trainer& trainer : trainers()) {
    if (!only.empty() && trainer.name != only) continue;
    auto all = steps_of(trainer, root);
    if (all.empty()) continue;
    std::ranges::reverse(all);
    const std::optional<uint64_t> wanted = newest_by_name(trainer, root);
    std::ranges::copy(drafts(trainer, root), std::back_inserter(all));
    for (const Candidate& one : all)
      if (!std::ranges::count(steps, one.path, &Step::path) &&
          (step_at(trainer, one.path) || !other_trainer(trainer, one.path)))
        steps.push_back(describe(trainer, one, wanted));
  }
  return steps;
}

}  // namespace ckpt::runs
