// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/find.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "formats/runs/find/candidates.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/find/unfinished.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using text::printable;

bool has_weights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (const std::string path = io::join(folder, name);
        !io::leads_nowhere(path) && io::is_file(path))
      return true;
  return false;
}

// The file or link of a root that names its newest step.
const std::string& names_newest(const Trainer& trainer) {
  return trainer.tracker.empty() ? trainer.pointer : trainer.tracker;
}

// "checkpoint-10" of "…/checkpoint-0010".
std::string without_zeros(const std::string& path) {
  const std::string name = io::base_name(path);
  std::string out;
  for (size_t at = 0; at < name.size(); ++at) {
    const bool leads = name[at] == '0' &&
                       (out.empty() || !text::is_digit(out.back())) &&
                       at + 1 < name.size() && text::is_digit(name[at + 1]);
    if (!leads) out += name[at];
  }
  return out;
}

// The newest real step of a root.
std::optional<Found> newest(const Trainer& trainer, const std::string& root,
                            const std::vector<Candidate>& all) {
  std::optional<Found> best;
  std::vector<std::string> skipped;
  const std::optional<uint64_t> wanted = newest_by_name(trainer, root);
  const std::string tracker = io::join(root, trainer.tracker);
  for (const Candidate& one : all) {
    auto step = step_at(trainer, one.path);
    if (step && !unfinished_mark(trainer, one.path).empty()) step.reset();
    const bool later = wanted && one.number && *one.number > *wanted;
    if (!step || later) {
      if (!best) skipped.push_back(io::base_name(one.path));
      continue;
    }
    if (best) {
      if (without_zeros(one.path) == without_zeros(best->step))
        best->twin = one.path;
      best->others.push_back(one.path);
      continue;
    }
    if (wanted && one.number != wanted) break;
    best = std::move(step);
    best->number = one.number;
    best->choice =
        wanted ? fmt::format("{} names it", printable(names_newest(trainer)))
        : one.last ? "it is the last one, by its name"
                   : "the newest complete step, by number";
  }
  // A root of this trainer whose tracker names a step that is not there.
  const bool ours = wanted && !all.empty() &&
                    std::ranges::any_of(all, [&](const Candidate& one) {
                      return step_at(trainer, one.path).has_value();
                    });
  if (!best && ours)
    throw input_error({tracker, {}}, "names step {}, which is not there",
                      *wanted)
        .with_hint(fmt::format("name the step that you mean: {}",
                               printable(all.front().path)));
  if (!best) return best;
  for (const auto& unread :
       {drafts(trainer, root), packed_steps(trainer, root)})
    for (const Candidate& one : unread)
      if (best->number && one.number > best->number)
        skipped.push_back(io::base_name(one.path));
  best->skipped = std::move(skipped);
  return best;
}

std::optional<Found> find_at(const Trainer& trainer, const std::string& path) {
  for (const std::string& pattern : trainer.steps) {
    const auto all = candidates(trainer, path, pattern);
    if (all.empty()) continue;
    if (auto found = newest(trainer, path, all)) {
      found->weights_beside = trainer.weights_beside && has_weights(path);
      return found;
    }
  }
  // Any DCP directory has that signature; its contents tell (adopt()).
  if (!trainer.objects.empty()) return std::nullopt;
  return step_at(trainer, path);
}

}  // namespace

std::optional<uint64_t> number_in_name(const Trainer& trainer,
                                       const Found& found) {
  if (found.number) return found.number;
  // The link of the newest step (latest-rank0.pt) leads to the name.
  std::error_code failed;
  const auto target = std::filesystem::read_symlink(found.step, failed);
  const std::string name = io::base_name(failed ? found.step : target.string());
  const std::string above = io::base_name(io::parent(found.step));
  for (const std::string& pattern : trainer.steps) {
    const std::string last = pattern.substr(pattern.rfind('/') + 1);
    for (const std::string& one : {name, above})
      if (const auto numbers = match(last, one);
          numbers && numbers->contains("N"))
        return numbers->at("N");
  }
  return std::nullopt;
}

std::optional<Found> find_run(const std::string& path,
                              const std::string& only) {
  if (!only.empty()) return find_at(find_trainer(only), path);
  // People have links of their own ("latest") beside their steps. If the target
  // is gone and the name is one that a trainer is known by, the folder is no
  // step of it, but may still be the root of another's.
  std::optional<Error> broken;
  for (const Trainer& trainer : trainers()) {
    if (io::is_file(path) && trainer.pickled.sign.empty()) continue;
    try {
      auto found = find_at(trainer, path);
      if (found && (!broken || found->step != path)) {
        if (broken) found->broken_link = broken->where().path;
        return found;
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::kMissing) throw;
      if (!broken) broken = error;
    }
  }
  if (broken) throw *broken;
  return std::nullopt;
}

}  // namespace ckpt::runs
