// SPDX-License-Identifier: Apache-2.0
// Directories of whole tensors in forms other than Hugging Face's, as
// OLMo-core's unshard_checkpoint writes them:
//
//   files     model.safetensors, optim.safetensors (.pt)   one of each kind
//   tensors   model/model-blocks-0-w-weight.safetensors …, one tensor each
//   chunks    model/chunk-00000.safetensors …,
//             model/model.safetensors.index.json
//
// Every file is what the format's Writer makes of its contents alone. The
// optimizer's tensors are in optim/, others (RNG state …) in other/; values
// that are not tensors are in optim.pt, or in objects.pt beside safetensors.
// The peer writes the optimizer only in the first form, and only as optim.pt.
#pragma once

#include <memory>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/format.h"

namespace ckpt::formats {

// The containers' option and its values.
inline constexpr std::string_view kForm = "split";
inline constexpr std::string_view kFiles = "files";
inline constexpr std::string_view kTensors = "tensors";
inline constexpr std::string_view kChunks = "chunks";  // of max_shard_size

// True if the layout has one of these forms (and is not a single file).
bool is_unsharded(const Layout& layout);

// False if the layout writes several files, each a checkpoint of its own, that
// no reader takes as a whole.
bool is_one_checkpoint(const Layout& layout);

FormatOption form_option();

// Adds these forms to a container's writer (safetensors or torch). Its lay_out
// throws unfaithful_error for two tensors whose files would have the same name.
std::unique_ptr<Writer> with_forms(std::unique_ptr<Writer> container);

}  // namespace ckpt::formats
