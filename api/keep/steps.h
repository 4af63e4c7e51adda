// SPDX-License-Identifier: Apache-2.0
// The steps of a training root: by a known trainer's rule (formats/runs), else
// all that are named like the step that was followed.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "formats/format.h"

namespace ckpt::library {

struct StepRow {
  std::string name;  // relative to the root
  std::string path;
  std::optional<uint64_t> number;
  std::string trainer;  // "" if none is known
  std::string format;   // then this; "" if no format takes it
  uint64_t bytes = 0;
  time_t saved = 0;                // when it was last written to; 0: not known
  std::vector<std::string> parts;  // "model", "optim" …
  bool complete = false;
  std::string why;  // if it is not
};

// From old to new; empty if `root` is not a root. `catalog` is the step that
// was followed, or null if it could not be opened. What no trainer's rule
// explains are steps where at least so many are named alike.
std::vector<StepRow> steps_of(const std::string& root, const std::string& from,
                              const formats::ReadOptions& read,
                              const Catalog* catalog, size_t least = 2);

// The same of a root alone, which is opened if no trainer's rule explains it. A
// single step is enough. Empty: it is a checkpoint itself. Throws as
// formats::open() does.
std::vector<StepRow> steps_in(const std::string& root, const std::string& from,
                              const formats::ReadOptions& read);
Error not_a_root(const std::string& root);
// Reads a step's headers: one that is damaged, or can't be opened, is not
// complete.
void open_step(StepRow& row, const std::string& from,
               const formats::ReadOptions& read);

// When something in a directory was written to last; 0: not known.
time_t last_change(const std::string& directory);

}  // namespace ckpt::library
