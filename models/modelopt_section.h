// SPDX-License-Identifier: Apache-2.0
// The family files' part about ModelOpt ("modelopt"): which file of a
// checkpoint in blocks a tensor is in. formats/modelopt has the files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/text/glob.h"

namespace ckpt::families {

struct ModeloptSection {
  // Model types that are named alike, beside those of the family itself.
  std::vector<std::string> also;
  std::string layers;  // "model.layers."
  // Names outside of layers, of the one tensor that is there.
  std::vector<std::string> embedding, norm, head;
  // Globs of what follows "model.layers.N.", for the two files of a block.
  std::vector<text::Glob> attention, ffn;
  // Groups of tensors in no block: name of the group, names of the tensors.
  std::vector<std::pair<std::string, std::vector<text::Glob>>> groups;
  // The name in a block that both halves have; a half with nothing else has no
  // file.
  std::string shared;
  // Beginnings of what follows "model.layers.N.", as they are in the model.
  std::vector<std::string> order;
};

}  // namespace ckpt::families
