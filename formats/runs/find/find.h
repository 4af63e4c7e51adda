// SPDX-License-Identifier: Apache-2.0
// Finds the newest step of a training run, and which trainer wrote it.
//
//   run/                              checkpoints/
//     checkpoint-9/                     epoch=0-step=16.ckpt   (a file)
//     checkpoint-10/  <- newest         epoch=1-step=32.ckpt/  (a folder)
//     checkpoint-11/  unfinished
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/runs/find/found.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

// Nothing if `path` is neither a step of a run nor its root. `only`: a
// trainer's name, or "" for any. Throws input_error if a tracker file names a
// step that does not exist.
std::optional<Found> find_run(const std::string& path,
                              const std::string& only = {});

// Reads the step's name: "global_step_10", or a role's folder below it.
std::optional<uint64_t> number_in_name(const Trainer& trainer,
                                       const Found& found);

// A step of a root, for listings.
struct Step {
  std::string path;
  std::optional<uint64_t> number;
  std::string trainer;
  uint64_t bytes = 0;
  int64_t seconds = 0;             // time of its last change, since 1970
  std::vector<std::string> parts;  // "model", "optim", "rng" …, sorted
  bool complete = false;
  std::string why;  // if not complete: "no model_world_size_2_rank_1.pt"
};
// Lists steps from old to new; empty if there are none. `only`: as for
// find_run.
std::vector<Step> list_steps(const std::string& root,
                             const std::string& only = {});

}  // namespace ckpt::runs
