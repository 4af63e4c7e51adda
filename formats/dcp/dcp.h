// SPDX-License-Identifier: Apache-2.0
// The dcp format: what torch.distributed.checkpoint writes.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::dcp {

inline constexpr std::string_view kFormat = "dcp";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::dcp
