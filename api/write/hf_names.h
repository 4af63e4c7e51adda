// SPDX-License-Identifier: Apache-2.0
// Which of transformers' two ways names are: models/hf_names.h has the table.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/ckpt.h"
#include "convert/options.h"

namespace ckpt::library {

// Gives a source the Hub's names, with which the rules of families begin. Where
// that can't be done its names stay: a family may know them.
void take_hub_names(Catalog& source);

// Naming::names. Throws usage_error if the source's names are not transformers'
// by now, and what families::take_hf_names throws.
void take_names(Catalog& source, const Naming& naming,
                const std::string& to_format);

// Why the names of a dialect can't become transformers'; "" if they can.
std::string hindrance(const Catalog& source, std::string_view from,
                      const families::TranslateOptions& options);

}  // namespace ckpt::library
