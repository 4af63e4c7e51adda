// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/foreign.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/unfinished.h"
#include "formats/runs/objects.h"
#include "formats/runs/optimizer/unnamed.h"
#include "formats/runs/read/adopt.h"
#include "formats/runs/read/sole.h"
#include "formats/runs/read/step.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using formats::ReadOptions;
using text::printable;

bool is_earlier(const Trainer& trainer, const std::string& one,
                const std::string& other) {
  const auto number = [&](const std::string& step) {
    for (const std::string& pattern : trainer.steps)
      if (const auto numbers = match(pattern.substr(pattern.rfind('/') + 1),
                                     io::base_name(step)))
        return age_of(*numbers);
    return uint64_t{0};
  };
  return number(one) < number(other);
}

// A role's folder that has files of the trainer's, but not those by which it
// is known: its model would be missing without a word.
void note_roles(const Found& found, Catalog& catalog) {
  const Trainer& trainer = *found.trainer;
  if (found.roles.empty()) return;
  for (const std::string& role : trainer.roles) {
    const std::string path = io::join(found.step, role);
    if (std::ranges::find(found.roles, role) != found.roles.end() ||
        !io::is_directory(path))
      continue;
    const auto of = std::ranges::find_if(trainers(), [&](const Trainer& one) {
      return &one != &trainer && one.roles == trainer.roles &&
             step_at(one, path);
    });
    if (of != trainers().end()) {
      catalog.problems.push_back(
          warning("unread_role", {path, {}},
                  "is of {}, {} is read: name the folder to read it", of->what,
                  printable(found.roles[0])));
      continue;
    }
    const auto has = [&](const std::string& pattern) {
      return !names_like(path, pattern).empty();
    };
    const auto is_there = [&](const auto& one) { return has(one.file); };
    if (std::ranges::any_of(trainer.traces, has) ||
        std::ranges::any_of(trainer.optimizers, is_there) ||
        std::ranges::any_of(trainer.parts, [&](const Part& part) {
          return !part.above && is_there(part);
        }))
      catalog.problems.push_back(damage(
          "missing_part", {path, {}}, "has no {}: its model is missing",
          as_glob(trainer.role_signature.empty() ? trainer.signature[0]
                                                 : trainer.role_signature[0])));
  }
}

// A role that the step beside has and this one lacks altogether.
void note_lost_roles(const Found& found, Catalog& catalog) {
  const Trainer& trainer = *found.trainer;
  if (found.roles.empty() || !trainer.components.file.empty()) return;
  const std::string beside = step_beside(trainer, found.step);
  if (beside.empty()) return;
  const auto other = step_at(trainer, beside);
  for (const std::string& role : other->roles) {
    const std::string path = io::join(found.step, role);
    if (std::ranges::find(found.roles, role) != found.roles.end() ||
        io::is_directory(path))
      continue;
    const std::string there = printable(io::join(beside, role));
    // Old steps are deleted first, and some trainers keep more of one role.
    if (is_earlier(trainer, beside, found.step))
      catalog.problems.push_back(damage(
          "missing_part", {path, {}},
          "is missing, the step before has it ({}): its model is lost", there));
    else
      catalog.problems.push_back(warning(
          "missing_part", {path, {}},
          "is missing, the step after has it ({}): it was deleted, or is lost",
          there));
  }
}

// Nothing if the file is damaged and that was said: it is a part.
std::optional<uint64_t> step_by_file(const Found& found,
                                     const Catalog& catalog) {
  const std::string path = io::join(found.step, found.trainer->step_file);
  try {
    return number_in(path, found.trainer->step_key);
  } catch (const Error& error) {
    const bool said =
        std::ranges::any_of(catalog.problems, [&](const Problem& problem) {
          return problem.kind == "part" && problem.file == path;
        });
    if (error.code() != ExitCode::kDamaged || !said) throw;
    return std::nullopt;
  }
}

// Reports a folder that a later run partly saved into again.
void note_other_step(const Found& found, Catalog& catalog) {
  const Trainer& trainer = *found.trainer;
  const auto named = number_in_name(trainer, found);
  if (!trainer.step_in_name || !named || !catalog.run->step ||
      *named == *catalog.run->step)
    return;
  catalog.problems.push_back(
      warning("stale_part", {io::join(found.step, trainer.step_file), {}},
              "says step {}, the folder is that of step {}: some of its files "
              "may be of another save",
              *catalog.run->step, *named));
}

// Steps of other trainers in the same root, which nobody would look for.
void note_other_trainers(const Found& found, const std::string& root,
                         Catalog& catalog) {
  if (found.step == root || io::is_url(root)) return;
  const auto is_mine = [&](const std::string& path) {
    return path == found.step ||
           std::ranges::find(found.others, path) != found.others.end() ||
           std::ranges::find(found.skipped, io::base_name(path)) !=
               found.skipped.end();
  };
  for (const Trainer& other : trainers()) {
    if (&other == found.trainer) continue;
    std::vector<Candidate> all;
    for (const std::string& pattern : other.steps)
      std::ranges::move(candidates(other, root, pattern),
                        std::back_inserter(all));
    const auto step = std::ranges::find_if(all, [&](const Candidate& one) {
      return !is_mine(one.path) && step_at(other, one.path);
    });
    if (step != all.end())
      catalog.problems.push_back(warning(
          "other_trainer", {step->path, {}},
          "is a step of {}, and {} of {}, which is read: --trainer {} reads "
          "the other's",
          other.what, printable(io::base_name(found.step)), found.trainer->what,
          other.name));
  }
}

// Saves that are not finished: those that were skipped, and this one.
void note_unfinished(const Found& found, const std::string& path,
                     Catalog& catalog) {
  const Trainer& trainer = *found.trainer;
  const std::string read = printable(io::base_name(found.step));
  const auto warn = [&](const std::string& at, std::string message) {
    catalog.problems.push_back(
        warning("unfinished_save", {at, {}}, "{}", std::move(message)));
  };
  if (!found.broken_link.empty())
    warn(found.broken_link,
         fmt::format("is a link that leads nowhere; {} is read", read));
  for (const std::string& name : found.skipped) {
    const std::string skipped = io::join(io::parent(found.step), name);
    if (io::leads_nowhere(skipped)) {
      warn(skipped, fmt::format("{} is a link that leads nowhere; {} is read",
                                printable(name), read));
      continue;
    }
    if (const auto foreign = formats::recognise_file(skipped);
        foreign && foreign->packed) {
      warn(skipped, fmt::format("{} is newer, but {}, which ckpt does not "
                                "unpack; {} is read",
                                printable(name), foreign->what, read));
      continue;
    }
    if (const Trainer* other = other_trainer(trainer, skipped)) {
      catalog.problems.push_back(warning(
          "other_trainer", {skipped, {}},
          "is newer, and a step of {}; {} of {} is read: --trainer {} reads "
          "the other's",
          other->what, read, trainer.what, other->name));
      continue;
    }
    const std::string why = why_unfinished(trainer, skipped);
    if (why.empty() && !trainer.pointer.empty())
      warn(skipped,
           fmt::format("{} is newer, but {} leads to {}, which is read",
                       printable(name), trainer.pointer, read));
    else
      warn(skipped,
           fmt::format("{} is newer, but an incomplete save{}; {} is read",
                       printable(name), why.empty() ? "" : ": " + why, read));
  }
  if (!found.twin.empty())
    catalog.problems.push_back(
        warning("same_step", {found.twin, {}},
                "is of the same step as {}, which is read: name the one that "
                "you mean",
                read));
  const std::string mark = unfinished_mark(trainer, found.step);
  if (found.step == path && !mark.empty())
    catalog.problems.push_back(
        damage("unfinished_save", {mark, {}},
               "is there, which {} removes at the end of a save: this one is "
               "incomplete",
               trainer.what));
}

// True for what a trainer saves of the model alone at the end of a run. (Steps
// of others may have such a name, and an optimizer.)
bool is_model_alone(const Trainer& trainer, const Catalog& catalog) {
  const Source& model = trainer.models[0];
  const auto is_state = [&](const std::string& name) {
    const auto begins = [&](const std::string& start) {
      return name.starts_with(start);
    };
    return std::ranges::any_of(model.optimizers, begins) ||
           std::ranges::any_of(model.others, begins);
  };
  return !trainer.exported.empty() && !catalog.tensors.empty() &&
         std::ranges::none_of(catalog.tensors, is_state, &Tensor::name) &&
         std::ranges::none_of(catalog.objects, is_state, &Object::name);
}

// Which is a model of its own then: no step that the trainer goes on from.
void end_alone(const Found& found, Catalog& catalog) {
  if (found.others.empty()) return;
  catalog.problems.push_back(
      warning("final_model", {found.step, {}},
              "is the newest step, and a model alone, as {} saves it at the "
              "end of a run: it is read; whoever goes on training names {}",
              found.trainer->what, printable(io::base_name(found.others[0]))));
}

void note_beyond(const Found& found, Catalog& catalog) {
  const std::string root = io::parent(found.step);
  for (const std::string& name : beyond_numbers(*found.trainer, root))
    catalog.problems.push_back(
        warning("step_number", {io::join(root, name), {}},
                "has a step's name and a number beyond 64 bits, which is not "
                "compared; {} is read: name the folder to read it",
                printable(io::base_name(found.step))));
}

}  // namespace

std::optional<Catalog> read_run(const Found& found, const std::string& path,
                                const ReadOptions& options) {
  const Trainer& trainer = *found.trainer;
  Catalog catalog;
  const bool lone = !io::is_directory(found.step);
  bool alone = false;
  if (!trainer.sole.format.empty()) {
    catalog = read_sole(found, options);
    catalog.run = Run{.trainer = trainer.name, .step = {}};
    if (found.roles.size() > 1)
      for (const std::string& role : found.roles)
        catalog.run->models.push_back(role + ".");
  } else if (lone || !trainer.objects.empty()) {
    const bool exported = is_exported(trainer, found.step);
    catalog = formats::find_format(lone       ? "torch"
                                   : exported ? "safetensors"
                                              : "dcp")
                  .reader->read_catalog(found.step, options);
    adopt(catalog, trainer.name, options);
    alone =
        !catalog.run && found.step != path && is_model_alone(trainer, catalog);
    if (!catalog.run && !alone) return std::nullopt;
  } else {
    catalog = read_step(found, options);
    say_unnamed(catalog);
  }
  if (!lone && trainer.objects.empty() && !trainer.step_file.empty())
    catalog.run->step = step_by_file(found, catalog);
  if (alone)
    end_alone(found, catalog);
  else
    note_other_step(found, catalog);
  if (!alone && !catalog.run->step && trainer.name != "accelerate")
    catalog.run->step = number_in_name(trainer, found);
  note_roles(found, catalog);
  note_lost_roles(found, catalog);
  if (found.step != path) catalog.root = path;
  std::vector<std::string> said{
      fmt::format("trainer {}: {}", trainer.name, found.why)};
  if (!found.choice.empty())
    said.push_back(fmt::format("{}: {}", printable(io::base_name(found.step)),
                               found.choice));
  catalog.assumptions.insert(catalog.assumptions.begin(), said.begin(),
                             said.end());
  note_unfinished(found, path, catalog);
  if (options.trainer.empty()) note_other_trainers(found, path, catalog);
  if (found.step != path && !trainer.without_tracker.empty() &&
      !io::is_file(io::join(path, trainer.tracker)))
    catalog.problems.push_back(
        warning("no_tracker", {io::join(path, trainer.tracker), {}},
                "is not there: {}; {} is read, the newest by number",
                trainer.without_tracker, printable(io::base_name(found.step))));
  if (found.step != path) note_beyond(found, catalog);
  if (found.weights_beside)
    catalog.problems.push_back(
        warning("final_model", {path, {}},
                "holds a model of its own, without optimizer, beside its "
                "steps; {} is read (--trainer none reads that model)",
                printable(io::base_name(found.step))));
  return catalog;
}

bool is_trainers_own(const std::string& trainer, const std::string& path) {
  const Trainer& known = find_trainer(trainer);
  const std::string name = io::base_name(path);
  if (name == known.tracker) return true;
  return std::ranges::any_of(known.parts, [&](const Part& part) {
    const bool about_model = part.part == "config" && part.world.empty();
    return !about_model && (match(part.file, path) || match(part.file, name));
  });
}

}  // namespace ckpt::runs
