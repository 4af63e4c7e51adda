// SPDX-License-Identifier: Apache-2.0
// A step that was found, and which trainer wrote it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

struct Found {
  const Trainer* trainer = nullptr;
  std::string step;    // the folder (or file) of the step
  std::string why;     // "trainer_state.json is in it"
  std::string choice;  // why this step, if the root has several: "the newest"
  std::optional<uint64_t> number;    // in its name
  std::vector<std::string> roles;    // "actor", "critic": folders with models
  std::vector<std::string> skipped;  // newer, incomplete ones
  std::vector<std::string> others;   // complete ones, newest first
  bool weights_beside = false;       // the root has a model of its own
  std::string twin;  // a step of the same number, with other zeros in its name
  std::string broken_link;  // of the root, by a trainer's name
};

}  // namespace ckpt::runs
