// SPDX-License-Identifier: Apache-2.0
// Turns flat parameters into the parameters that they consist of: only names,
// shapes and pieces change.
//
//   layers.0._flat_param [154]   ->  layers.0.norm.weight [7]
//                                    layers.0.w1.weight [10, 7] …
//   each one's pieces: flat ranges of it, one for each rank that has some
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/fsdp/flat_params.h"

namespace ckpt::fsdp {

// What became of a flat tensor, or of its optimizer state.
struct Expansion {
  std::string name;  // its old name
  std::string leaf;  // the part of it that stands for the parameters
  struct Into {
    std::string name;
    std::string parameter;  // what replaces the leaf in the name
  };
  std::vector<Into> into;
};

using Names = std::unordered_set<std::string>;

// Replaces the tensors that `all` describes, and one-dimensional state of the
// same length that belongs to them; other state (steps) is repeated for each
// parameter. `padded`: the names of those that are (FlatTensor); a Redundant of
// the catalog says that their remainder is zeros. Opens the archives of flat
// tensors (ckpt::locate). Throws usage_error for a key without a tensor, and
// what begins() throws.
std::vector<Expansion> expand(Catalog& catalog, const FlatParameters& all,
                              const Names& padded = {});

// expand() with the file of --flat-params, if there is one; then notes flat
// tensors without a description.
std::vector<Expansion> expand_given(Catalog& catalog,
                                    const formats::ReadOptions& options,
                                    const Names& padded = {});

// Replaces `leaf` at the end of the name `text` by the parameter, and removes
// the words of FSDP's wrappers before it.
std::string with_parameter(std::string_view text, std::string_view leaf,
                           std::string_view parameter);

}  // namespace ckpt::fsdp
