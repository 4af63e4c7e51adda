// SPDX-License-Identifier: Apache-2.0
// What the steps of a write work on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "api/edits.h"
#include "ckpt/ckpt.h"
#include "lib/manifest.h"
#include "reshard/plan/plan_size.h"

namespace ckpt::library {

// A target that is laid out and proven, but not written.
struct Prepared {
  Catalog source;
  Target target;
  reshard::Plan plan;
  std::string path;  // DST
  bool single_file = false;
  bool shown_only = false;      // then it can't be run
  bool in_place = false;        // the plan takes the place of pieces
  uint64_t assumed = 0;         // items that were not opened
  reshard::PlanSize plan_size;  // of the whole, whatever is in `plan`
  uint64_t held = 0;      // bytes of the catalogs and of the plan, in a run
  uint64_t planning = 0;  // the most of them until the plan is made
  bool sums = false;      // digests are asked for, whatever the options say
  Edits edits;            // of `source`
  // What the manifest says of tensors that are not in `plan`, where whole files
  // are copied, and where they come from.
  std::optional<Manifest> known;
  // Tensors and files of the target that are written although something says
  // that they are wrong, and what does. They get no digest.
  struct Unproven {
    std::map<std::string, std::string> tensors;
    std::map<std::string, std::string> files;
  };
  Unproven unproven;

  // Of the manifest that was written, if one was.
  std::optional<uint64_t> manifest_bytes = {};

  uint64_t file_bytes() const;
};

}  // namespace ckpt::library
