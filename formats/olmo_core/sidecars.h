// SPDX-License-Identifier: Apache-2.0
// What lies beside model_and_optim: the trainer's state of each rank, the
// configuration, lists of data files. All of it is carried as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "containers/torch/limits.h"

namespace ckpt::olmo_core {

// Whether a file or a folder of the checkpoint's directory is left where it is:
// `below` is its name there, as "train/rank0.pt".
using IsOmitted = std::function<bool(const std::string& below, bool is_folder)>;

// All files below a checkpoint's directory but those omitted, by their names.
// Links to folders are not followed (a problem says so). Throws input_error,
// with `hint`, for more files than any checkpoint has.
void collect_sidecars(const std::string& home, const IsOmitted& is_omitted,
                      const char* hint, Catalog& catalog);

// All but model_and_optim.
void add_sidecars(const std::string& home, Catalog& catalog);

// train/rank0.pt … of all processes are there: each says how many there were
// (world_size). Nothing to do if there are none (save_model_and_optim_state),
// or rank 0's alone.
void check_train_files(const std::string& home, Catalog& catalog,
                       const torch::Limits& limits);

// The rank of "train/rank3.pt".
std::optional<uint32_t> train_rank(std::string_view sidecar);

}  // namespace ckpt::olmo_core
