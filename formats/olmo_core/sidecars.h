// SPDX-License-Identifier: Apache-2.0
// What there is beside model_and_optim: the trainer's state of each rank, the
// configuration, lists of data files. All of it is carried unchanged.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "containers/torch/limits.h"

namespace ckpt::olmo_core {

// True if a file or folder of the checkpoint's directory stays where it is.
// `below` is its name there, such as "train/rank0.pt".
using IsOmitted = std::function<bool(const std::string& below, bool is_folder)>;

// Adds all files below a checkpoint's directory except those omitted, by name.
// Does not follow links to folders (a problem says so). Throws input_error,
// with `hint`, for more files than any checkpoint has.
void collect_sidecars(const std::string& home, const IsOmitted& is_omitted,
                      const char* hint, Catalog& catalog);

// Adds all except model_and_optim.
void add_sidecars(const std::string& home, Catalog& catalog);

// Checks that train/rank0.pt … of all processes are there: each says how many
// there were (world_size). Does nothing if there are none
// (save_model_and_optim_state), or only rank 0's.
void check_train_files(const std::string& home, Catalog& catalog,
                       const torch::Limits& limits);

// The rank in "train/rank3.pt".
std::optional<uint32_t> train_rank(std::string_view sidecar);

}  // namespace ckpt::olmo_core
