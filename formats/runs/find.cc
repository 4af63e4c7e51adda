// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/runs/candidates.h"
#include "formats/runs/pattern.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

bool has_weights(const std::string& folder) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (io::is_file(io::join(folder, name))) return true;
  return false;
}

// The newest of a root's steps that is one.
std::optional<Found> newest(const Trainer& trainer, const std::string& root,
                            const std::vector<Candidate>& all) {
  std::optional<Found> best;
  std::vector<std::string> skipped;
  const std::optional<uint64_t> wanted = tracked_step(trainer, root);
  const std::string tracker = io::join(root, trainer.tracker);
  for (const Candidate& one : all) {
    auto step = step_at(trainer, one.path);
    const bool later = wanted && one.number && *one.number > *wanted;
    if (!step || later) {
      if (!best) skipped.push_back(io::base_name(one.path));
      continue;
    }
    if (best) {
      best->others.push_back(one.path);
      continue;
    }
    if (wanted && one.number != wanted) break;
    best = std::move(step);
    best->number = one.number;
    best->choice = wanted
                       ? fmt::format("{} names it", printable(trainer.tracker))
                   : one.last ? "it is the last one, by its name"
                              : "the newest complete step, by number";
  }
  // A root of this trainer in which no step can be opened.
  const bool ours = wanted && !all.empty() &&
                    std::ranges::any_of(all, [&](const Candidate& one) {
                      return step_at(trainer, one.path).has_value();
                    });
  if (!best && ours)
    throw input_error({tracker, {}}, "names step {}, which is not there",
                      *wanted)
        .with_hint(fmt::format("name the step that you mean: {}",
                               printable(all.front().path)));
  if (best) best->skipped = std::move(skipped);
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
  // Any directory of DCP has that signature; what is in it tells (adopt()).
  if (!trainer.objects.empty()) return std::nullopt;
  return step_at(trainer, path);
}

}  // namespace

std::optional<uint64_t> number_in_name(const Trainer& trainer,
                                       const Found& found) {
  if (found.number) return found.number;
  const std::string name = io::base_name(found.step);
  const std::string above = io::base_name(io::parent(found.step));
  for (const std::string& pattern : trainer.steps) {
    const std::string last = pattern.substr(pattern.rfind('/') + 1);
    for (const std::string& one : {name, above})
      if (const auto numbers = match(last, one)) return numbers->at("N");
  }
  return std::nullopt;
}

std::optional<Found> find_run(const std::string& path,
                              const std::string& only) {
  if (!only.empty()) return find_at(find_trainer(only), path);
  for (const Trainer& trainer : trainers()) {
    if (io::is_file(path) && trainer.pickled.sign.empty()) continue;
    if (auto found = find_at(trainer, path)) return found;
  }
  return std::nullopt;
}

}  // namespace ckpt::runs
