// SPDX-License-Identifier: Apache-2.0
// What may be a step of a root, and what is one. Private to this room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/runs/find.h"

namespace ckpt::runs {

// By its name alone.
struct Candidate {
  std::string path;
  std::optional<uint64_t> number;
  bool last = false;
};

// Steps of a root by one pattern, from new to old.
std::vector<Candidate> candidates(const Trainer& trainer,
                                  const std::string& root,
                                  const std::string& pattern);

// Nothing if the folder is not a step of that trainer.
std::optional<Found> step_at(const Trainer& trainer, const std::string& path);

// The first of the signature's names that is not there; empty if all are.
std::string lacks(const Trainer& trainer, const std::string& folder);

// Another step of the same run: the nearest by number, an earlier one if there
// are two. "" for a step that lies alone. `step` may be a role's folder.
std::string step_beside(const Trainer& trainer, const std::string& step);

// The folders of models of their own below a step.
std::vector<std::string> roles_in(const Trainer& trainer,
                                  const std::string& folder);

// What the root's tracker file says; nothing if it is absent. Throws
// input_error for one that holds no number.
std::optional<uint64_t> tracked_step(const Trainer& trainer,
                                     const std::string& root);

}  // namespace ckpt::runs
