// SPDX-License-Identifier: Apache-2.0
// The header of a .safetensors file.
//
//   0        8              8+n                     end of file
//   | u64 n  | n bytes JSON | tensor data, no gaps  |
//
// The JSON maps each name to a dtype, a shape and data_offsets [begin, end),
// counted from byte 8+n. Sorted by begin, they cover the data exactly.
// "__metadata__" maps strings to strings and is not a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/catalog.h"
#include "ckpt/dtype.h"
#include "lib/io/file.h"
#include "lib/text/parts.h"

namespace ckpt::safetensors {

inline constexpr std::string_view kFormat = "safetensors";
inline constexpr std::string_view kMetadata = "__metadata__";
// The object that holds what an index says besides total_size.
inline constexpr std::string_view kIndexMetadata = "__index_metadata__";
// "format" among the metadata of a lossless delta, whose tensors are packed
// files (api/delta/lossless.h).
inline constexpr std::string_view kLosslessFormat = "ckpt_lossless/1";
// The reference reader refuses longer headers.
inline constexpr uint64_t kMaxHeader = 100'000'000;

struct Entry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  uint64_t begin = 0;  // from the start of the file
  uint64_t end = 0;
};

// An entry as a tensor of a catalog whose file of that number it is in.
Tensor tensor_of(Entry entry, uint32_t file);

using Metadata = std::vector<std::pair<std::string, std::string>>;

// True for keys whose values are checksums of a file's tensors or of the whole
// file: sshs_model_hash, sshs_legacy_hash, modelspec.hash_sha256.
bool is_checksum_key(std::string_view key);

struct Header {
  std::vector<Entry> entries;        // by begin
  std::optional<Metadata> metadata;  // in the order of the file
  uint64_t data_begin = 0;
};

// Reads and checks the header; reads no tensor data. Throws an input_error
// that names the file, the tensor and the rule it breaks.
Header read_header(const io::Handle& file);

// The same for many files at a time, handed over in order.
struct FileHeader {
  File file;
  Header header;
};
void read_headers(const std::vector<std::string>& paths,
                  const std::function<void(size_t, FileHeader)>& take);

// The same for a header that is in memory, of a file of `file_size` bytes.
Header parse_header(std::string_view json, uint64_t file_size,
                    const std::string& path);
// The same for `length` bytes that are read part by part.
Header parse_header(text::Parts parts, uint64_t length, uint64_t file_size,
                    const std::string& path);

// True if a file of `size` bytes with these first bytes may be safetensors: a
// length that fits, then the start of a JSON object.
bool looks_like_header(std::string_view head, uint64_t size);

// --- writing ---

// What the header says about one tensor; data are in the order of these.
struct Described {
  std::string_view name;
  std::string_view dtype;  // "BF16"
  Shape shape;
  uint64_t bytes = 0;
};

// The place of a dtype in the reference writer's order, which puts larger
// alignments first: sort by it, then by name.
size_t dtype_rank(std::string_view dtype);

// The length field and the JSON, byte for byte as the reference writer has
// them: compact, padded with spaces to a multiple of 8. Metadata are in the
// given order (the reference's is random), and omitted if there are none.
std::string encode_header(std::span<const Described> tensors,
                          const std::optional<Metadata>& metadata);

}  // namespace ckpt::safetensors
