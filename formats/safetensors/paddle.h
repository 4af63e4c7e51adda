// SPDX-License-Identifier: Apache-2.0
// PaddleNLP's and PaddleFormers' safetensors files: names are transformers', or
// have the class's own word for "model."; linears are stored [in, out].
//
//   __metadata__ {"format": "pd"}
//   __metadata__ {"format": "np"}, and config.json has paddlenlp_version
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::safetensors {

// Whether PaddlePaddle's trainers wrote files with that "format", beside the
// config.json of a directory.
bool is_paddles(const std::string& format, const std::string& directory);

// Shows linears as torch has them, [out, in], and transformers' names. No byte
// moves.
void turn_paddles(Catalog& catalog, const std::string& directory);

}  // namespace ckpt::safetensors
