// SPDX-License-Identifier: Apache-2.0
// Where the newest step of a training run is, and which trainer wrote it.
//
//   run/                              checkpoints/
//     checkpoint-9/                     epoch=0-step=16.ckpt   (a file)
//     checkpoint-10/  <- newest         epoch=1-step=32.ckpt/  (a folder)
//     checkpoint-11/  unfinished
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/runs/trainer.h"

namespace ckpt::runs {

struct Found {
  const Trainer* trainer = nullptr;
  std::string step;    // the folder (or file) of the step
  std::string why;     // "trainer_state.json is in it"
  std::string choice;  // why this step, if the root has several: "the newest"
  std::optional<uint64_t> number;    // in its name
  std::vector<std::string> roles;    // "actor", "critic": folders with models
  std::vector<std::string> skipped;  // newer ones that are not complete
  std::vector<std::string> others;   // complete ones, from new to old
  bool weights_beside = false;       // the root has a model of its own
};

// Nothing if `path` is neither a step of a run nor its root. `only`: a
// trainer's name, or "" for any. Throws input_error for a tracker file that
// names a step that is not there.
std::optional<Found> find_run(const std::string& path,
                              const std::string& only = {});

// A step by its name and by what is in it, but for the file that its trainer
// knows it by.
struct Unsigned {
  const Trainer* trainer = nullptr;
  std::string file;  // what is missing
  std::string why;   // "optimizer.pt in checkpoint-10"
};

// `path` itself. Only for what find_run() does not know.
std::optional<Unsigned> find_unsigned(const std::string& path);
// The newest step of a root that has no other.
std::optional<Unsigned> find_unsigned_below(const std::string& root);

// By its name: "global_step_10", or the folder of a role below it.
std::optional<uint64_t> number_in_name(const Trainer& trainer,
                                       const Found& found);

// A step of a root, for listings.
struct Step {
  std::string path;
  std::optional<uint64_t> number;
  std::string trainer;
  uint64_t bytes = 0;
  int64_t seconds = 0;             // of its last change, since 1970
  std::vector<std::string> parts;  // "model", "optim", "rng" …, sorted
  bool complete = false;
  std::string why;  // if it is not: "no model_world_size_2_rank_1.pt"
};
// From old to new; empty if there is none. `only`: as find_run's.
std::vector<Step> list_steps(const std::string& root,
                             const std::string& only = {});

// The names in `folder` (or one folder below, if the pattern has a slash) that
// match, with their numbers, by number.
struct Name {
  std::string path;  // relative to the folder
  std::map<std::string, uint64_t, std::less<>> numbers;
};
std::vector<Name> names_like(const std::string& folder,
                             const std::string& pattern);

}  // namespace ckpt::runs
