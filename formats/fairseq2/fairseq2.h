// SPDX-License-Identifier: Apache-2.0
// The fairseq2 format: native checkpoints of 0.5 and later, and those of 0.3
// and 0.4 (read only).
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::fairseq2 {

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::fairseq2
