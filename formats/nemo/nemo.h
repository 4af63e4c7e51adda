// SPDX-License-Identifier: Apache-2.0
// NeMo 1's archives: a tar of a model, its configuration and its tokenizer.
//
//   x.nemo                       tar, older ones inside of gzip
//     model_config.yaml
//     model_weights.ckpt         a state dict of torch.save, or …
//     model_weights/             … Megatron-Core's distributed checkpoint, or …
//     mp_rank_00/model_weights.ckpt                 … tensor ranks, or …
//     tp_rank_00_pp_rank_000/model_weights.ckpt     … ranks of a pipeline
//     0123abcd_tokenizer.model   and other artifacts
//
// Names begin with "model." (megatron_amp_O2: "model.module."), otherwise they
// are Megatron's. Nothing is extracted: tensors are ranges of the archive
// (lib/io/mount.h). A directory with the same contents is read, too.
//
// The catalog is that of what is inside, with model_config.yaml as Megatron's
// args.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "formats/format.h"

namespace ckpt::nemo {

inline constexpr std::string_view kFormat = "nemo";
inline constexpr std::string_view kConfig = "model_config.yaml";

std::unique_ptr<formats::Reader> make_reader();

// Reads model_config.yaml as Megatron's args. Nothing if it can't be read; then
// `why` says what is wrong.
std::optional<nlohmann::json> read_args(const std::string& path,
                                        std::string* why = nullptr);

}  // namespace ckpt::nemo
