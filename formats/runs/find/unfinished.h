// SPDX-License-Identifier: Apache-2.0
// What a trainer itself leaves to say that a save is not finished, and which of
// its saves is the newest whole one (trainers.json: `unfinished`, `drafts`,
// `pointer`). Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/runs/find/candidates.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

// Saves of a root that still have the name of a save in progress, from new to
// old.
std::vector<Candidate> drafts(const Trainer& trainer, const std::string& root);

// Compressed files of a root that have a step's name but for the ending.
std::vector<Candidate> packed_steps(const Trainer& trainer,
                                    const std::string& root);

// The step that the root's tracker file names, or its link leads to. Nothing if
// there is neither; throws input_error if the file holds no number.
std::optional<uint64_t> newest_by_name(const Trainer& trainer,
                                       const std::string& root);

// Why the trainer would not resume from what looks like one of its steps; ""
// if nothing says so.
std::string why_unfinished(const Trainer& trainer, const std::string& step);

}  // namespace ckpt::runs
