// SPDX-License-Identifier: Apache-2.0
// The olmo_core format: what OLMo-core has written since 1.0.0, a distributed
// checkpoint of PyTorch in its own folders.
//
//   step1000/
//     model_and_optim/.metadata        formats/dcp/metadata.h
//     model_and_optim/__0_0.distcp …
//     train/rank0.pt …                 the trainer's state, one per rank
//     config.json  data_paths.txt
//     .metadata.json                   written last
#pragma once

#include <memory>

#include "formats/format.h"

namespace ckpt::olmo_core {

inline constexpr std::string_view kFormat = "olmo_core";
inline constexpr std::string_view kDataFolder = "model_and_optim";
inline constexpr std::string_view kIndex = ".metadata";
inline constexpr std::string_view kNote = ".metadata.json";
inline constexpr std::string_view kTrainFolder = "train";

// Catalog::dialect: names without "model." and "optim." …
inline constexpr std::string_view kDialect = "olmo_core";
// … and the flat master weights of OLMoDDPTrainModule.
inline constexpr std::string_view kDirectDialect = "olmo_core_direct";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::olmo_core
