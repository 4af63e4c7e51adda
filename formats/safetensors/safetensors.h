// SPDX-License-Identifier: Apache-2.0
// The safetensors format: one file, or a directory as Hugging Face keeps it.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::safetensors {

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::safetensors
