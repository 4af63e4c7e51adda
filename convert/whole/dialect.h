// SPDX-License-Identifier: Apache-2.0
// Is a model whole whose names are not transformers'? The way to those names
// says what does not fit.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/options.h"
#include "convert/rules/mismatches.h"

namespace ckpt::families {

// What names, shapes and the configuration are looked up in: no piece is
// copied.
Catalog names_of(const Catalog& source);

struct DialectAnswer {
  std::vector<Finding> findings = {};
  std::string open = {};  // why it can't be told; "" where it can
};

// By the rules of the family that the source or the options name.
DialectAnswer ask_dialect(const Catalog& names,
                          const TranslateOptions& options);

// Megatron's arguments name no family. If all tensors, their shapes and the
// arguments are those of any, nothing is missing. Otherwise the nearest is
// named, and what it would have more or less.
DialectAnswer ask_all_families(const Catalog& names,
                               const TranslateOptions& options);

}  // namespace ckpt::families
