// SPDX-License-Identifier: Apache-2.0
// A trainer's step as a format to read and to write: its own, for other ranks
// (rewrite.h), or another trainer's (compose.h).
#pragma once

#include <memory>
#include <vector>

#include "formats/format.h"

namespace ckpt::runs {

std::vector<FormatOption> options();
// Another trainer's step has only data-parallel ranks, as many as the source
// unless requested otherwise (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

std::unique_ptr<formats::Reader> make_run_reader();
std::unique_ptr<formats::Writer> make_run_writer();

}  // namespace ckpt::runs
