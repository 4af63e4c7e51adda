// SPDX-License-Identifier: Apache-2.0
// Legacy Megatron-LM checkpoints: one directory per rank.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::megatron {

std::unique_ptr<formats::Reader> make_legacy_reader();
std::unique_ptr<formats::Writer> make_legacy_writer();

}  // namespace ckpt::megatron
