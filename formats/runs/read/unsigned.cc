// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/unsigned.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ckpt/note.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/read/checks.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::printable;
using Patterns = std::vector<std::string>;

bool is_named(const Trainer& trainer, const std::string& step) {
  const std::string name = io::base_name(step);
  return std::ranges::any_of(trainer.steps, [&](const std::string& pattern) {
    return match(pattern.substr(pattern.rfind('/') + 1), name).has_value();
  });
}

// "a" of "a|b".
std::string first_name(const std::string& sign) {
  return sign.substr(0, sign.find('|'));
}

const Patterns& role_signs(const Trainer& trainer) {
  return trainer.role_signature.empty() ? trainer.signature
                                        : trainer.role_signature;
}

// The files here that point to this trainer, one of each kind, the clearest
// first.
class Traces {
 public:
  Traces(const Trainer& trainer, std::string folder)
      : trainer_(trainer), folder_(std::move(folder)) {}

  void find(const Patterns& signs) {
    if (!trainer_.traces.empty()) {
      for (const std::string& pattern : trainer_.traces) add(pattern);
      return;
    }
    for (const Source& source : trainer_.optimizers) add(source.file);
    for (const Part& part : trainer_.parts)
      if (!part.carried && part.part != "config" && !part.above) add(part.file);
    // By name alone, "10" could be any trainer's.
    const bool any_name =
        std::ranges::find(trainer_.steps, "{N}") != trainer_.steps.end();
    for (const std::string& sign : signs)
      if (!any_name || !sign.ends_with('/')) add(first_name(sign));
    for (const std::string& sign : signs) add_folder_of(first_name(sign));
    if (!trainer_.sole.at.empty()) add(trainer_.sole.at + "/");
    for (const Sole::More& one : trainer_.sole.more) add(one.at + "/");
  }

  // What is beside the folders of roles.
  void find_above() {
    for (const Part& part : trainer_.parts)
      if (part.above) add(part.file);
  }

  const std::vector<std::string>& found() const { return found_; }

 private:
  void add(const std::string& pattern) {
    // A link that leads nowhere is no trace: whoever reads the file says so.
    if (io::leads_nowhere(io::join(folder_, pattern))) return;
    const auto names = names_like(folder_, pattern);
    if (names.empty() ||
        std::ranges::find(found_, names[0].path) != found_.end())
      return;
    found_.push_back(names[0].path);
  }

  // dist_ckpt/ without its metadata.json is a trace of who names it so.
  void add_folder_of(const std::string& sign) {
    const size_t slash = sign.rfind('/');
    if (slash == sign.npos || slash + 1 == sign.size() ||
        sign.starts_with("../"))
      return;
    add(sign.substr(0, slash + 1));
  }

  const Trainer& trainer_;
  const std::string folder_;
  std::vector<std::string> found_;
};

// optim/optim.pt, rng_state_0.pth: not optimizer.pt.
bool is_clear(const std::string& name) {
  return std::ranges::any_of(
      name, [](char c) { return c == '/' || text::is_digit(c); });
}

std::string missing_of(const Patterns& signs, const std::string& folder) {
  for (const std::string& sign : signs)
    if (!has_sign(folder, sign)) return first_name(sign);
  return {};
}

std::string place_of(const std::string& folder, const std::string& missing) {
  return io::join(folder, as_glob(fill(missing, {{"r", 0}})));
}

// All parts in one DCP: its writers' files without the index.
std::optional<Unsigned> unindexed_at(const Trainer& trainer,
                                     const std::string& step) {
  const auto names = io::list_directory(step);
  const auto file = std::ranges::find_if(
      names, [](const std::string& name) { return name.ends_with(".distcp"); });
  if (file == names.end() || !lacks_index(step)) return std::nullopt;
  return Unsigned{.trainer = &trainer,
                  .step = step,
                  .file = io::join(step, ".metadata"),
                  .why = fmt::format("{} in {}", printable(*file),
                                     printable(io::base_name(step))),
                  .traces = 1,
                  .clear = false};
}

class Search {
 public:
  Search(const Trainer& trainer, const std::string& step)
      : trainer_(trainer), step_(step) {}

  std::optional<Unsigned> unsigned_step() const {
    if (!io::is_directory(step_)) return std::nullopt;
    if (!trainer_.objects.empty()) return unindexed_at(trainer_, step_);
    std::optional<Unsigned> best;
    for (auto one : trainer_.role_signature.empty() ? alone() : of_roles())
      if (!best || one.traces > best->traces) best = std::move(one);
    return best;
  }

 private:
  // A step has the whole signature, or a folder of each role has.
  std::vector<Unsigned> alone() const {
    std::vector<std::string> folders{step_};
    for (const std::string& role : trainer_.roles)
      folders.push_back(io::join(step_, role));
    std::vector<Unsigned> found;
    for (const std::string& folder : folders) {
      if (!io::is_directory(folder)) continue;
      const std::string missing = missing_of(trainer_.signature, folder);
      if (!missing.empty()) add(traces_in(folder), missing, folder, found);
    }
    if (found.empty() && !trainer_.roles.empty()) add_lost_role(found);
    return found;
  }

  // What is beside the roles' folders, all of which are gone or empty.
  void add_lost_role(std::vector<Unsigned>& found) const {
    Traces here(trainer_, step_);
    here.find_above();
    const std::string folder = io::join(step_, trainer_.roles[0]);
    add(here.found(), missing_of(trainer_.signature, folder), folder, found);
  }

  // A step has its signature, and the folder of each role the role's.
  std::vector<Unsigned> of_roles() const {
    Traces here(trainer_, step_);
    if (!trainer_.signature.empty()) here.find(trainer_.signature);
    here.find_above();
    std::vector<std::string> traces = here.found();
    std::string role;  // one that lacks something
    size_t whole = 0;
    for (const std::string& one : trainer_.roles) {
      const std::string folder = io::join(step_, one);
      if (!io::is_directory(folder)) continue;
      if (role.empty()) role = one;
      if (missing_of(trainer_.role_signature, folder).empty()) ++whole;
      for (const std::string& trace : traces_in(folder))
        traces.push_back(io::join(one, trace));
    }
    std::vector<Unsigned> found;
    const std::string missing = missing_of(trainer_.signature, step_);
    if (!missing.empty()) {
      add(traces, missing, step_, found);
    } else if (whole == 0) {
      const std::string folder =
          io::join(step_, role.empty() ? trainer_.roles[0] : role);
      add(traces, missing_of(trainer_.role_signature, folder), folder, found);
    }
    return found;
  }

  std::vector<std::string> traces_in(const std::string& folder) const {
    Traces traces(trainer_, folder);
    traces.find(folder == step_ ? trainer_.signature : role_signs(trainer_));
    return traces.found();
  }

  void add(const std::vector<std::string>& traces, const std::string& missing,
           const std::string& folder, std::vector<Unsigned>& found) const {
    if (traces.empty() || missing.empty()) return;
    const bool own = trainer_.role_signature.empty() &&
                     io::is_listed_file(io::join(folder, traces[0]));
    const std::string in = own ? folder : step_;
    found.push_back({.trainer = &trainer_,
                     .step = step_,
                     .file = place_of(folder, missing),
                     .why = fmt::format("{} in {}", printable(traces[0]),
                                        printable(io::base_name(in))),
                     .traces = traces.size(),
                     .clear = std::ranges::any_of(traces, is_clear)});
  }

  const Trainer& trainer_;
  const std::string& step_;
};

std::optional<Unsigned> unsigned_at(const Trainer& trainer,
                                    const std::string& step) {
  // Who has no steps has traces that no one else leaves.
  const bool has_steps = !trainer.steps.empty();
  if (has_steps && !is_named(trainer, step)) return std::nullopt;
  return Search(trainer, step).unsigned_step();
}

void take_nearer(std::optional<Unsigned> other, std::optional<Unsigned>& best) {
  if (other && (!best || other->traces > best->traces)) best = std::move(other);
}

}  // namespace

std::optional<Unsigned> find_unsigned(const std::string& path) {
  std::optional<Unsigned> best;
  if (io::is_url(path)) return best;
  for (const Trainer& trainer : trainers())
    take_nearer(unsigned_at(trainer, path), best);
  return best;
}

std::optional<Unsigned> find_unsigned_below(const std::string& root) {
  std::optional<Unsigned> best;
  if (io::is_url(root)) return best;
  const auto newest = [&](const Trainer& trainer) -> std::optional<Unsigned> {
    for (const std::string& pattern : trainer.steps)
      for (const Candidate& one : candidates(trainer, root, pattern))
        if (auto found = unsigned_at(trainer, one.path)) return found;
    return std::nullopt;
  };
  for (const Trainer& trainer : trainers()) take_nearer(newest(trainer), best);
  return best;
}

std::optional<Unsigned> find_renamed(const std::string& path) {
  constexpr size_t kFewest = 2;
  std::optional<Unsigned> best;
  if (io::is_url(path)) return best;
  for (const Trainer& trainer : trainers())
    if (trainer.traces.empty() && !trainer.steps.empty() &&
        trainer.objects.empty())
      if (auto found = Search(trainer, path).unsigned_step();
          found && found->clear && found->traces >= kFewest)
        take_nearer(std::move(found), best);
  return best;
}

namespace {

// Null if the trainer never goes without what is missing.
const WithoutSign* known_without(const Unsigned& step) {
  const WithoutSign& without = step.trainer->without_sign;
  const bool is_it =
      !without.file.empty() && step.file.ends_with("/" + without.file);
  return is_it ? &without : nullptr;
}

bool is_whole(const Unsigned& step) {
  const WithoutSign* without = known_without(step);
  return without != nullptr && without->is_whole;
}

std::string text_of(const Unsigned& step) {
  const Trainer& trainer = *step.trainer;
  if (const WithoutSign* without = known_without(step))
    return fmt::format("is missing: {} ({})", without->text, step.why);
  return fmt::format(
      "is missing: {} ({}) always writes it, and {} without it", trainer.what,
      step.why,
      trainer.components.file.empty() ? "resumes no step" : "loads nothing");
}

}  // namespace

Error without_sign(const Unsigned& step, const std::string& path) {
  if (is_whole(step))
    return missing_error({step.file, {}}, "{}", text_of(step))
        .with_hint("name the step's folder: its model opens by itself");
  return input_error({step.file, {}}, "{}", text_of(step))
      .with_hint(path == step.step
                     ? "fetch it again from where the step was saved"
                     : "fetch it again from where the step was saved, or name "
                       "the step's folder: what is in it opens as nobody's");
}

Problem note_without_sign(const Unsigned& step) {
  return note(
      is_whole(step) ? Problem::Severity::kNote : Problem::Severity::kDamage,
      "missing_part", {step.file, {}}, "{}", text_of(step));
}

bool is_part_of(const Unsigned& step, const Catalog& catalog) {
  const Trainer& trainer = *step.trainer;
  const auto is_part = [&](const File& file) {
    std::string path = file.path;
    if (path.starts_with(step.step + "/")) path.erase(0, step.step.size() + 1);
    const auto is_it = [&](const auto& one) {
      return match(one.file, path) || match(one.file, io::base_name(path));
    };
    return std::ranges::any_of(trainer.parts, is_it) ||
           std::ranges::any_of(trainer.optimizers, is_it);
  };
  return !catalog.files.empty() && std::ranges::all_of(catalog.files, is_part);
}

}  // namespace ckpt::runs
