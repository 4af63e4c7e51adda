// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "api/keep/links.h"
#include "api/keep/metric.h"
#include "api/keep/steps.h"
#include "ckpt/error.h"
#include "ckpt/keep.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/remote.h"
#include "lib/io/remove.h"
#include "lib/io/rename.h"
#include "lib/io/staging_target.h"
#include "lib/manifest.h"
#include "lib/session.h"
#include "lib/text/format.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
using library::StepRow;

formats::ReadOptions read_of(const PruneOptions& options) {
  return {.family = options.open.family,
          .shard_dims_file = options.open.shard_dims_file,
          .restrict_globals = options.open.restrict_globals,
          .trainer = options.trainer};
}

// Steps that are counted together: "checkpoints/epoch=", with the trainer.
std::string kind_of(const StepRow& step) {
  const std::string name = io::base_name(step.path);
  return step.trainer + "\n" + io::parent(step.path) + "\n" +
         name.substr(0, name.find_first_of("0123456789"));
}

std::string pruned_name(const std::string& path) {
  return io::join(io::parent(path), "." + io::base_name(path) +
                                        std::string(library::kPrunedEnding));
}

// The step of which that is left.
std::string step_of(const std::string& aside) {
  const std::string name = io::base_name(aside);
  return io::join(
      io::parent(aside),
      name.substr(1, name.size() - 1 - library::kPrunedEnding.size()));
}

class Prune {
 public:
  Prune(std::string root, const PruneOptions& options)
      : root_(std::move(root)), options_(options), read_(read_of(options)) {}

  Pruned run();

 private:
  void check() const;
  void list();
  void open_each();
  void keep_by_rules();
  void keep_best(const library::Notes& notes);
  void keep_referred();
  void count_bytes();
  void find_unfinished();
  void remove_one(size_t index);
  void finish(const std::string& path);
  void finish_earlier(const std::string& path);
  bool put_aside(size_t index, const std::string& aside);
  void keep(size_t index, std::string why) {
    result_.steps[index].why.push_back(std::move(why));
  }
  bool goes(size_t index) const { return result_.steps[index].why.empty(); }

  const std::string root_;
  const PruneOptions& options_;
  const formats::ReadOptions read_;
  std::optional<library::Metric> metric_;
  std::vector<StepRow> rows_;
  Pruned result_;
};

void Prune::check() const {
  if (options_.keep_last == 0 && options_.keep_every == 0 &&
      options_.keep_best.empty())
    throw usage_error({root_, {}}, "nothing says which steps to keep")
        .with_hint("--keep-last 3 keeps the newest three");
  if (io::is_url(root_))
    throw usage_error({root_, {}}, "steps on a server are not deleted")
        .with_hint("the store's own rules for old objects do that");
  if (!io::is_directory(root_)) {
    if (!io::is_file(root_))
      throw missing_error({root_, {}}, "no such file or directory");
    throw usage_error({root_, {}}, "is a file, not the folder of a run")
        .with_hint("name the directory that the steps are in");
  }
}

void Prune::list() {
  const Session::Own session;
  rows_ = library::steps_in(root_, options_.open.format, read_);
  if (rows_.empty()) throw library::not_a_root(root_);
  std::ranges::stable_sort(rows_, {}, [](const StepRow& row) {
    return row.number.value_or(UINT64_MAX);
  });
  for (const StepRow& row : rows_)
    result_.steps.push_back({.name = row.name,
                             .path = row.path,
                             .number = row.number,
                             .bytes = row.bytes,
                             .complete = row.complete,
                             .why = {}});
}

// A step whose headers can't be read is not one of those that are counted, and
// not one that goes: somebody has yet to look at it.
void Prune::open_each() {
  for (StepRow& row : rows_)
    library::open_step(row, options_.open.format, read_);
}

void Prune::keep_best(const library::Notes& notes) {
  if (notes.values.empty()) {
    const Error error = usage_error(
        {root_, {}}, "--keep-best {}: no step has it in trainer_state.json",
        text::printable(metric_->name));
    if (notes.metrics.empty()) throw error.with_hint("leave --keep-best out");
    throw error.with_hint(fmt::format(
        "metrics there: {}",
        text::printable(fmt::format("{}", fmt::join(notes.metrics, ", ")))));
  }
  double best = notes.values.begin()->second;
  for (const auto& [index, value] : notes.values)
    best =
        metric_->less_is_better ? std::min(best, value) : std::max(best, value);
  for (const auto& [index, value] : notes.values)
    if (value == best)
      keep(index, fmt::format("the best {}: {}", metric_->name, value));
}

void Prune::keep_by_rules() {
  std::map<std::string, uint64_t> newer;  // complete ones of a kind
  for (size_t i = rows_.size(); i-- > 0;) {
    const StepRow& row = rows_[i];
    const std::string name = io::base_name(row.path);
    if (!row.complete)
      keep(i, "incomplete: " + row.why);
    else if (!library::is_own(root_, row))
      keep(i, "a link leads to it");
    else if (!row.number || name.starts_with("last"))
      keep(i, "its name has no step's number");
    if (!goes(i)) continue;
    const uint64_t count = newer[kind_of(row)]++;
    if (count == 0)
      keep(i, "the newest");
    else if (count < options_.keep_last)
      keep(i, fmt::format("one of the last {}", options_.keep_last));
    if (options_.keep_every != 0 && *row.number % options_.keep_every == 0)
      keep(i, fmt::format("a multiple of {}", options_.keep_every));
  }
  const library::Notes notes =
      library::trainer_notes(rows_, metric_.value_or(library::Metric{}));
  if (metric_) keep_best(notes);
  if (notes.best && rows_[*notes.best].complete)
    keep(*notes.best, "trainer_state.json names it the best");
}

// What is linked from a step that stays, stays: until nothing changes.
void Prune::keep_referred() {
  const std::vector<library::Reference> all = library::references(root_, rows_);
  for (bool changed = true; changed;) {
    changed = false;
    for (const library::Reference& one : all) {
      if (one.owner && goes(*one.owner)) continue;
      const std::string why = one.from + " leads to it";
      if (std::ranges::count(result_.steps[one.to].why, why)) continue;
      changed = changed || goes(one.to);
      keep(one.to, why);
    }
  }
}

// A file counts once all of its names go.
void Prune::count_bytes() {
  std::map<std::pair<dev_t, ino_t>, nlink_t> seen;
  const auto add = [&](const std::string& path) {
    struct stat facts;
    if (::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    if (++seen[{facts.st_dev, facts.st_ino}] == facts.st_nlink)
      result_.bytes += static_cast<uint64_t>(facts.st_size);
  };
  for (const PrunedStep& step : result_.steps) {
    if (!step.goes) continue;
    std::error_code failed;
    add(step.path);
    fs::recursive_directory_iterator at(step.path, failed);
    for (const fs::recursive_directory_iterator end; !failed && at != end;
         at.increment(failed))
      add(at->path().string());
  }
}

void Prune::find_unfinished() {
  std::set<std::string> folders{root_};
  for (const StepRow& row : rows_)
    if (library::is_own(root_, row)) folders.insert(io::parent(row.path));
  for (const std::string& folder : folders)
    for (const std::string& name : io::list_directory(folder))
      if (const std::string path = io::join(folder, name);
          name.starts_with('.') && name.ends_with(library::kPrunedEnding) &&
          !io::is_link(path))
        result_.unfinished.push_back(path);
}

// Removes what was renamed, and a manifest that is left without its file.
void Prune::finish(const std::string& path) {
  if (const std::error_code failed = io::remove_tree(path))
    throw io_error(path, "cannot remove all of it", failed.value())
        .with_hint("the same command continues there");
  const std::string step = step_of(path);
  if (!io::exists(step)) {
    // Beside a file only: a directory's was in it.
    const std::string manifest = step + std::string(kManifestName);
    if (!io::is_link(manifest) && io::is_file(manifest))
      io::remove_tree(manifest);
  }
  io::sync_directory(io::parent(path));
}

// A run that was killed just after it renamed the step left its lock, too.
void Prune::finish_earlier(const std::string& path) {
  try {
    const io::TargetLock left(step_of(path));
  } catch (const Error&) {  // somebody writes that step anew
    failures::forget();
  }
  finish(path);
}

// False if something has begun to name the step since it was listed.
bool Prune::put_aside(size_t index, const std::string& aside) {
  const PrunedStep& step = result_.steps[index];
  const io::TargetLock lock(step.path);  // no ckpt writes it
  if (const std::string by = library::named_by_root(root_, rows_[index]);
      !by.empty()) {
    keep(index, by + " leads to it");
    return false;
  }
  if (!io::rename_new(step.path, aside, io::RenameNew::kNothing))
    throw unfaithful_error({aside, {}}, "is in the way of {}",
                           text::printable(step.name))
        .with_hint("run it again: it finishes what another run began");
  io::sync_directory(io::parent(step.path));
  return true;
}

void Prune::remove_one(size_t index) {
  PrunedStep& step = result_.steps[index];
  if (interrupted())
    throw Interrupted("stopped between two steps; run it again to resume");
  const std::string aside = pruned_name(step.path);
  step.goes = put_aside(index, aside);
  if (!step.goes) return;
  finish(aside);
  step.gone = true;
  if (options_.removed) options_.removed(step.name);
}

Pruned Prune::run() {
  check();
  if (!options_.keep_best.empty())
    metric_ = library::metric_of("--keep-best", options_.keep_best);
  list();
  open_each();
  for (size_t i = 0; i < rows_.size(); ++i)
    result_.steps[i].complete = rows_[i].complete;
  keep_by_rules();
  keep_referred();
  for (size_t i = 0; i < rows_.size(); ++i) result_.steps[i].goes = goes(i);
  count_bytes();
  find_unfinished();
  if (!options_.remove) return std::move(result_);
  const InterruptScope scope;
  for (const std::string& path : result_.unfinished) finish_earlier(path);
  for (size_t i = 0; i < rows_.size(); ++i)
    if (result_.steps[i].goes) remove_one(i);
  return std::move(result_);
}

}  // namespace

Pruned prune(const std::string& root, const PruneOptions& options) {
  return Prune(root, options).run();
}

}  // namespace ckpt
