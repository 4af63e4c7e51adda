// SPDX-License-Identifier: Apache-2.0
// Elements that no file holds: a quantized weight's numbers, computed from its
// codes and scales as they are read, or what several tensors amount to
// together. A File that is_decoded() has one; its bytes are
//
//   [batch][rows][columns] elements of `dtype`, row-major
//
// The tensors they are computed from all have three dimensions, batch first.
// Natural order is that of the codes; `transposed` means that the file's rows
// are natural columns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/ggml.h"

namespace ckpt {

enum class Coding : uint8_t {
  // One code a byte (fp8, int8): (code - zero) * scale of its block.
  kScaled,
  // Two e2m1 per byte, the first in the lower half; a scale for each 32
  // (block_columns), usually e8m0.
  kE2m1,
  // int32 words of 32 / bits codes along the rows, zeros along the columns.
  kGptq,
  // int32 words of 8 codes along the columns, in the order 0 2 4 6 1 3 5 7.
  kAwq,
  // `bits` bits to a code, along a row of bytes without gaps, lowest bits
  // first. `table` has the number of each code; without one, codes are numbers.
  kPacked,
  // The other way round: `codes` are numbers, and the file holds their e4m3
  // codes, or the f32 scales of their blocks. Nothing is transposed.
  kFp8Codes,
  kFp8Scales,
  // ggml's blocks, of the type `ggml`, along the columns: a matrix has a whole
  // number of them in each row. `codes` are their bytes, u8; nothing else of a
  // Decoding counts but its name. kGgmlBlocks is the other way round: `codes`
  // are numbers, and the file holds the bytes of their blocks, u8. `rows` and
  // `columns` count numbers in both. Nothing is transposed.
  kGgml,
  kGgmlBlocks,
  // No codes: what several tensors of one shape amount to, element by element
  // (Combination). Nothing is transposed.
  kCombined,
};

// The differences from a base that count. The others are taken for zero.
struct KeptDeltas {
  // Those that are larger than `least` and, of those that equal it, those of a
  // lower index than `until`: the bits of an f32 without its sign.
  uint32_t least = 0;
  uint64_t until = UINT64_MAX;
  // Or those of which a hash of `seed` and index is below `share`.
  std::optional<double> share;
  uint64_t seed = 0;
  float factor = 1;  // of each that is kept
};

// One of the tensors that are taken together.
struct Term {
  Tensor tensor;  // [batch][rows][columns]; its dtype may be its own
  double weight = 1;
  std::optional<KeptDeltas> kept;  // kDeltas; nothing: all count
  bool is_delta = false;           // kDeltas: it is x - x0 already
};

// What `terms` amount to, in f32, or in f64 if it is `exact`:
//
//   kSum     (w0 x0 + w1 x1 + ...) / divisor
//   kDeltas  x0 + lambda / divisor * (w1 (x1 - x0) + w2 (x2 - x0) + ...)
//
// kDeltas with `agreeing`: of the deltas of an element only those with the sign
// of their sum count; the divisor is then the sum of their weights, or 1 if it
// is not `normal`.
struct Combination {
  enum class How : uint8_t { kSum, kDeltas };
  How how = How::kSum;
  std::vector<Term> terms;
  double divisor = 1;
  double lambda = 1;
  bool agreeing = false;
  bool normal = false;
  bool exact = false;
  // What is not finite is refused, unless all terms have it in the same place.
  bool finite = false;
};

struct Decoding {
  Coding coding = Coding::kScaled;
  DType dtype = DType::f32;  // of the elements
  uint64_t batch = 1;
  uint64_t rows = 0, columns = 0;  // in natural order
  bool transposed = false;
  // The part of a natural matrix that shares a scale; the last ones of a row
  // or column may be smaller.
  uint64_t block_rows = 1, block_columns = 1;
  uint32_t bits = 8;
  GgmlType ggml = GgmlType::f32;
  uint32_t zero_offset = 0;  // added to each stored zero of kGptq
  bool high_first =
      false;  // kPacked of 4 bits: the first code is the high half
  // kPacked: zeros are packed as codes are, along the rows of words.
  bool packed_zeros = false;
  // kPacked: zeros are added instead, code * scale + zero.
  bool adds_zeros = false;
  float factor = 1;  // of each number, after its scale
  // What each number is rounded to before it becomes `dtype`.
  std::optional<DType> rounds;
  std::shared_ptr<const std::vector<float>> table;
  std::string name;  // of the weight, for messages
  Tensor codes, scales;
  // An empty shape if absent. `order` (g_idx) holds the group of each row.
  Tensor zeros, order;
  // Absent, or what the scales are scaled by: one for each matrix, or one for
  // `outer_block` scales in their own order.
  //
  //   scale = scale * outer, or scale / outer, or table[scale] * outer + offset
  Tensor outer;
  uint64_t outer_block = 0;  // 0: a matrix
  bool outer_divides = false;
  float outer_offset = 0;
  std::shared_ptr<const std::vector<float>> scale_table;
  // The files that the tensors' extents refer to. Not the catalog's own list,
  // which may become part of another.
  std::shared_ptr<const std::vector<File>> files;
  std::shared_ptr<const Combination> combined;  // kCombined
};

// Such a File has Codec::kMemory, "bytes of the caller's": `memory` is the
// Decoding, and `fill`, which memory does not use, is this mark.
inline constexpr std::string_view kDecodedMark = "decoded";

// A file of another checkpoint than the one that a catalog was opened from,
// whose manifest knows nothing of it.
inline constexpr std::string_view kForeignMark = "foreign";
inline bool is_foreign(const File& file) {
  return file.codec != Codec::kFill && file.fill == kForeignMark;
}
inline void mark_foreign(File& file) {
  if (file.codec != Codec::kFill && file.fill.empty()) file.fill = kForeignMark;
}

// The stored tensors that it is made of.
std::vector<const Tensor*> parts_of(const Decoding& made);

inline bool is_decoded(const File& file) {
  return file.codec == Codec::kMemory && file.fill == kDecodedMark;
}
inline const Decoding& decoding_of(const File& file) {
  return *reinterpret_cast<const Decoding*>(file.memory);
}
// The Decoding is kept until the process ends, since files are copied freely
// and have no owner. That is some hundred bytes for each weight.
File decoded_file(std::string path, uint64_t size, Decoding decoding);

// The type of a tensor that is stored in ggml's blocks; null for any other.
const GgmlInfo* blocks_of(const Tensor& tensor, const Catalog& catalog);
bool has_blocks(const Catalog& catalog);

// The bytes of such blocks in place of their numbers: u8, with as many in the
// last dimension as a row has.
void take_stored(const Catalog& catalog, Tensor& tensor);
void take_stored(Catalog& catalog);

// As inspect shows them: "Q4_0" and the bytes of the blocks; of other tensors
// the dtype and the bytes of the elements.
std::string_view stored_type(const Tensor& tensor, const Catalog& catalog);
uint64_t stored_bytes(const Tensor& tensor, const Catalog& catalog);
// The files that the catalog's elements are in, each once: without those that
// are decoded, and the places of elements that no file has.
uint64_t file_count(const Catalog& catalog);
// The files that a piece's bytes are in: for decoded elements those of the
// parts that they are made of.
std::vector<std::string_view> stored_in(const Piece& piece,
                                        const Catalog& catalog);

}  // namespace ckpt
