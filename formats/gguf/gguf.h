// SPDX-License-Identifier: Apache-2.0
// GGUF: one file for llama.cpp and its like, or one in several parts
// (NAME-00001-of-00003.gguf).
//
// The catalog that the reader makes, and what the writer expects:
//
//   tensors    ggml's names ("blk.0.attn_q.weight"), in the order of the file;
//              what is stored in blocks (Q4_0, Q6_K …) is f32, decoded as it
//              is read (lib/decoding.h)
//   objects    one for each key of the metadata, by its name
//   kTypes     an object: a dict with the type of each key ("u32",
//              "arr:str"), in the order of the file. A key that is not in it
//              is no metadata, and is left out
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "lib/ggml.h"

namespace ckpt::gguf {

inline constexpr std::string_view kFormat = "gguf";
inline constexpr std::string_view kTypes = "gguf.types";
inline constexpr std::string_view kEnding = ".gguf";

std::unique_ptr<formats::Reader> make_reader();
std::unique_ptr<formats::Writer> make_writer();

}  // namespace ckpt::gguf
