// SPDX-License-Identifier: Apache-2.0
// NVIDIA Model Optimizer's checkpoints: Hugging Face names, and files by
// decoder block. Tensors are never cut.
//
//   rank shards     model-00001-of-0000W.safetensors … one for each rank
//                   model.safetensors.index.json
//                   the same with .pth: pickled dicts, model.pth.index.json
//   block files     subblocks_safetensors/embeddings.safetensors
//                   subblocks_safetensors/block_<i>_attention.safetensors
//                   subblocks_safetensors/block_<i>_ffn.safetensors
//                   subblocks_safetensors/lm_head.safetensors
//                   model.safetensors.index.json
//                   older: subblocks/*.pth
//
// A rank owns whole blocks, not always adjacent ones: topology pp = W. Blocks
// differ (config.json: block_configs); some lack attention or ffn or both. The
// head of a tied model is in two shards.
#pragma once

#include <memory>
#include <string_view>

#include "formats/format.h"

namespace ckpt::modelopt {

inline constexpr std::string_view kFormat = "modelopt";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kBlockFolder = "subblocks_safetensors";

// Layout::form, and the Catalog::version that the reader sets.
inline constexpr std::string_view kShards = "shards";
inline constexpr std::string_view kBlocks = "blocks";
inline constexpr std::string_view kPickledShards = "pickled shards";
inline constexpr std::string_view kPickledBlocks = "pickled blocks";

// One rank's shard alone looks like Hugging Face's. True if it is ModelOpt's
// after all, judging by how the index ends.
bool is_lone_shard(const Catalog& source);

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::modelopt
