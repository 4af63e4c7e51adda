// SPDX-License-Identifier: Apache-2.0
// What there is beside the model and the optimizer: trainer state, positions of
// the data readers, scores, model.yaml.
//
//   trainer/rank_RR.pt     one per process; all but the random states is equal
//   data_reader/dp_DD.pt   one per data-parallel rank; opaque
//   scores/step_N.txt      one number
//   hg/                    an export for Hugging Face: not carried
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/fairseq2/scan.h"
#include "formats/format.h"

namespace ckpt::fairseq2 {

// Trainer values become the objects "trainer.<key>". The files become sidecars,
// with their names below the step: "trainer/rank_00.pt"; and "model.yaml",
// "scores/step_7.txt".
void read_extras(const Location& location, const std::string& model_yaml,
                 Catalog& catalog, const formats::ReadOptions& options);

// Adds the sidecars of `source` to a target of that topology: `step` is the
// step's directory in it ("" or "step_7"). A resume needs a trainer file per
// process and a data reader file per data-parallel rank.
void write_extras(const Catalog& source, const Topology& topology,
                  const std::string& step, Target& target);

}  // namespace ckpt::fairseq2
