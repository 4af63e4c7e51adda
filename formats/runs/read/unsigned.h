// SPDX-License-Identifier: Apache-2.0
// A trainer's step that lacks a file of its signature: whose it is, and what is
// missing.
//
//   epoch_0_step_3/            its name is that of Automodel's steps
//     model/                   one name of the signature
//     optim/__0_0.distcp       the other one, optim/.metadata, is not there
//     step_scheduler.pt        a part: not to be taken for the checkpoint
#pragma once

#include <optional>
#include <string>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "formats/runs/find/trainer.h"

namespace ckpt::runs {

struct Unsigned {
  const Trainer* trainer = nullptr;
  std::string step;    // its folder
  std::string file;    // the missing file or folder
  std::string why;     // "optimizer.pt in checkpoint-10"
  size_t traces = 0;   // kinds of files that point to this trainer
  bool clear = false;  // one of them is no name that anyone may choose
};

// The nearest trainer of `path` itself, whose steps have such a name. Only for
// paths that find_run() does not know.
std::optional<Unsigned> find_unsigned(const std::string& path);
// The newest such step of a root that has no others.
std::optional<Unsigned> find_unsigned_below(const std::string& root);
// For folders of any name: two kinds of files at least have to point to the
// trainer, and not only such as optimizer.pt.
std::optional<Unsigned> find_renamed(const std::string& path);

// The error about a step that does not open, or not as its trainer's.
// `path` is what was to be opened: the step, or its root.
Error without_sign(const Unsigned& step, const std::string& path);
// The same about a step that opens without it.
Problem note_without_sign(const Unsigned& step);

// True if nothing but parts of such a step was opened: no model.
bool is_part_of(const Unsigned& step, const Catalog& catalog);

}  // namespace ckpt::runs
