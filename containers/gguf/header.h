// SPDX-License-Identifier: Apache-2.0
// The header of a GGUF file (ggml's docs/gguf.md; versions 1 to 3).
//
//   "GGUF" | u32 version | u64 tensors | u64 keys
//   keys:     string name | u32 type | value
//   tensors:  string name | u32 dims | u64 each, innermost first | u32 type
//             | u64 offset in the data
//   padding to general.alignment, then data, each tensor padded likewise
//
// Numbers are little-endian, or all big-endian: the version tells. Version 1
// has counts and lengths of 32 bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"
#include "lib/ggml.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"

namespace ckpt::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr std::string_view kAlignment = "general.alignment";
inline constexpr uint64_t kUsualAlignment = 32;

// A key of the metadata. `type` is "u32", "f32", "bool", "str", "arr:str" …
struct Key {
  std::string name;
  std::string type;
  pickle::Id value = pickle::kNoId;
};

struct Entry {
  std::string name;
  Shape shape;  // outermost first, as everywhere in ckpt
  const GgmlInfo* type = nullptr;
  uint64_t begin = 0;  // from the start of the file
  uint64_t bytes = 0;
};

struct Header {
  uint32_t version = 0;
  bool big_endian = false;
  uint64_t alignment = kUsualAlignment;
  std::shared_ptr<pickle::Document> document;  // the values of `keys`
  std::vector<Key> keys;                       // in the order of the file
  std::vector<Entry> entries;                  // by begin
  uint64_t data_begin = 0, data_end = 0;
};

// Reads and checks the header; reads no tensor. Throws input_error naming the
// file, the key or tensor, and the byte where it is wrong; unfaithful_error for
// a type that is not known.
Header read_header(const io::Handle& file);

// --- writing ---

// A value with its type; `value` is of `document`.
struct Described {
  std::string_view name;
  Shape shape;  // outermost first; of elements, not of blocks
  GgmlType type = GgmlType::f32;
  uint64_t bytes = 0;
};

// The header and the padding behind it; and where the data of each tensor
// begin, in the file. Keys are in the given order; general.alignment among them
// counts. Throws unfaithful_error for what the format can't hold.
struct Encoded {
  std::string head;
  std::vector<uint64_t> begins;
  uint64_t size = 0;  // of the file
};
Encoded encode_header(const pickle::Document& document,
                      const std::vector<Key>& keys,
                      const std::vector<Described>& tensors);

}  // namespace ckpt::gguf
