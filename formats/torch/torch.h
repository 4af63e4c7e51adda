// SPDX-License-Identifier: Apache-2.0
// The torch format: what torch.save writes.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::torch {

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::torch
