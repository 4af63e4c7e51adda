// SPDX-License-Identifier: Apache-2.0
// The formats of Megatron-LM and Megatron-Core.
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::megatron {

// megatron_torch_dist: dist/reader.cc, dist/writer.cc
std::unique_ptr<formats::Reader> make_dist_reader();
std::unique_ptr<formats::Writer> make_dist_writer();

// megatron_fsdp_dtensor, which is only read: dist/fsdp_reader.cc
std::unique_ptr<formats::Reader> make_fsdp_reader();

// megatron_local, likewise: dist/local_reader.cc
std::unique_ptr<formats::Reader> make_local_reader();

}  // namespace ckpt::megatron
