// SPDX-License-Identifier: Apache-2.0
// Finds what may be a step of a root, and what is one. Private to this room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/runs/find/found.h"
#include "formats/runs/find/pattern.h"

namespace ckpt::runs {

// A possible step, judging by name alone.
struct Candidate {
  std::string path;
  std::optional<uint64_t> number;
  bool last = false;
};

// Folders of a root that a step's name fits but for a number beyond 64 bits:
// none can be told to be the newest.
std::vector<std::string> beyond_numbers(const Trainer& trainer,
                                        const std::string& root);

// The number that tells a step's age: its own, else its epoch's.
uint64_t age_of(const Numbers& numbers);

// Steps of a root by one pattern, from new to old.
std::vector<Candidate> candidates(const Trainer& trainer,
                                  const std::string& root,
                                  const std::string& pattern);

// Nothing if the folder is not a step of that trainer.
std::optional<Found> step_at(const Trainer& trainer, const std::string& path);

// True for a last step that is the model alone, under transformers' names.
bool is_exported(const Trainer& trainer, const std::string& folder);

// The other trainer that a folder is a step of, by its name and its signature;
// null if there is none.
const Trainer* other_trainer(const Trainer& mine, const std::string& path);

// True if one of "a|b" is in the folder, or beside it.
bool has_sign(const std::string& folder, const std::string& sign);

// The first of the signature's names that is missing; empty if none is.
std::string lacks(const Trainer& trainer, const std::string& folder);

// Another step of the same run: the nearest by number, an earlier one if there
// are two. "" for a step without others. `step` may be a role's folder.
std::string step_beside(const Trainer& trainer, const std::string& step);

// The folders below a step that each hold a model.
std::vector<std::string> roles_in(const Trainer& trainer,
                                  const std::string& folder);

// The mark of a save in progress, in the step's folder or beside it. "" if
// there is none: then it is finished, or its trainer leaves no marks.
std::string unfinished_mark(const Trainer& trainer, const std::string& step);

// The step in the root's tracker file; nothing if there is no such file. Throws
// input_error if it holds no number.
std::optional<uint64_t> tracked_step(const Trainer& trainer,
                                     const std::string& root);

}  // namespace ckpt::runs
