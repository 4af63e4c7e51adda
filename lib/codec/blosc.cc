// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/blosc.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/codec/decoder.h"
#include "lib/text/format.h"

#ifdef CKPT_HAVE_BLOSC
#include <blosc.h>
#endif

namespace ckpt::codec {
namespace {

constexpr uint64_t kHeader = 16;
// What blosc itself chooses is a few MiB at most; a whole block is in memory.
constexpr uint64_t kMaxBlock = uint64_t{64} << 20;
constexpr uint8_t kDontSplit = 0x10;

uint32_t u32(const std::byte* at) {
  return std::to_integer<uint32_t>(at[0]) |
         std::to_integer<uint32_t>(at[1]) << 8 |
         std::to_integer<uint32_t>(at[2]) << 16 |
         std::to_integer<uint32_t>(at[3]) << 24;
}

void put_u32(std::byte* at, uint64_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

#ifdef CKPT_HAVE_BLOSC
// The inner compressor, by its number in the flags.
constexpr std::array<const char*, 5> kInside = {
    BLOSC_BLOSCLZ_COMPNAME, BLOSC_LZ4_COMPNAME, BLOSC_SNAPPY_COMPNAME,
    BLOSC_ZLIB_COMPNAME, BLOSC_ZSTD_COMPNAME};

void check_inside(const Where& where, uint8_t flags) {
  const unsigned number = flags >> 5;
  if (number >= kInside.size())
    throw input_error(where, "blosc chunk with compressor {}, none has that",
                      number);
  if (blosc_compname_to_compcode(kInside[number]) < 0)
    throw resource_error(where,
                         "is compressed with {} inside of blosc, which the "
                         "blosc library here lacks",
                         kInside[number])
        .with_hint("install a c-blosc that has it");
}

bool decompress_chunk(std::span<const std::byte> chunk,
                      std::span<std::byte> plain) {
  size_t size = 0;
  if (blosc_cbuffer_validate(chunk.data(), chunk.size(), &size) < 0 ||
      size != plain.size())
    return false;
  const int made =
      blosc_decompress_ctx(chunk.data(), plain.data(), plain.size(), 1);
  return made >= 0 && static_cast<size_t>(made) == plain.size();
}
#else
void check_inside(const Where& where, uint8_t) {
  throw_missing(where, Codec::kBlosc, "libblosc-dev");
}
bool decompress_chunk(std::span<const std::byte>, std::span<std::byte>) {
  return false;
}
#endif

}  // namespace

BloscChunk::BloscChunk(const io::Handle& file, uint64_t offset, uint64_t size,
                       Where where)
    : file_(file), offset_(offset), packed_(size), where_(std::move(where)) {
  read_header();
  if (header_.stored() || header_.nbytes == 0) return;
  check_inside(where_, header_.flags);
  read_starts();
  check_blocks();
}

void BloscChunk::read_header() {
  if (packed_ < kHeader)
    throw input_error(where_, "blosc chunk of {} bytes, its header has {}",
                      packed_, kHeader);
  std::array<std::byte, kHeader> bytes;
  file_.read(offset_, bytes);
  header_ = {.format = std::to_integer<uint8_t>(bytes[0]),
             .codec_format = std::to_integer<uint8_t>(bytes[1]),
             .flags = std::to_integer<uint8_t>(bytes[2]),
             .typesize = std::to_integer<uint8_t>(bytes[3]),
             .nbytes = u32(&bytes[4]),
             .blocksize = u32(&bytes[8]),
             .cbytes = u32(&bytes[12])};
  if (header_.format < 1 || header_.format > 2)
    throw input_error(where_,
                      "blosc chunk of format {}, ckpt reads formats 1 and 2",
                      header_.format);
  if (header_.cbytes != packed_)
    throw input_error(where_, "blosc chunk says it has {} bytes, it has {}",
                      header_.cbytes, packed_);
  if (header_.stored() && header_.nbytes + kHeader != packed_)
    throw input_error(where_,
                      "blosc chunk stores {} plain bytes in a file of {}",
                      header_.nbytes, packed_);
  if (header_.nbytes == 0 && packed_ != kHeader)
    throw input_error(where_, "blosc chunk of nothing has {} bytes", packed_);
}

void BloscChunk::read_starts() {
  if (header_.blocksize == 0 || header_.typesize == 0 ||
      header_.blocksize > header_.nbytes)
    throw input_error(where_,
                      "blosc chunk of {} plain bytes in blocks of {}, elements "
                      "of {}",
                      header_.nbytes, header_.blocksize, header_.typesize);
  if (header_.blocksize > kMaxBlock)
    throw resource_error(
        where_, "blosc chunk with blocks of {}, ckpt takes at most {}",
        text::iec_size(header_.blocksize), text::iec_size(kMaxBlock))
        .with_hint("write the array again with smaller blocks");
  const uint64_t count =
      (uint64_t{header_.nbytes} + header_.blocksize - 1) / header_.blocksize;
  if (count > (packed_ - kHeader) / 4)
    throw input_error(where_, "blosc chunk of {} bytes with {} blocks", packed_,
                      count);
  std::vector<std::byte> table(count * 4);
  file_.read(offset_ + kHeader, table);
  starts_.resize(count);
  for (size_t i = 0; i < count; ++i) starts_[i] = u32(&table[i * 4]);
}

// A block extends to where the next one begins: blosc's threads write them in
// the order in which they finish.
void BloscChunk::check_blocks() {
  const uint64_t first = kHeader + 4 * starts_.size();
  for (const uint32_t start : starts_)
    if (start < first || start >= packed_)
      throw input_error(where_,
                        "blosc block at byte {} of a chunk whose blocks lie in "
                        "{}-{}",
                        start, first, packed_);
  std::vector<uint32_t> order = starts_;
  std::ranges::sort(order);
  ends_.resize(starts_.size());
  for (size_t i = 0; i < starts_.size(); ++i) {
    const auto next = std::ranges::upper_bound(order, starts_[i]);
    ends_[i] = next == order.end() ? header_.cbytes : *next;
  }
}

void BloscChunk::load(uint32_t block) {
  if (loaded_ == block) return;
  loaded_ = UINT32_MAX;
  const uint64_t begin = uint64_t{block} * header_.blocksize;
  const uint64_t size =
      std::min<uint64_t>(header_.blocksize, header_.nbytes - begin);
  // Compressed parts are never larger than plain ones: each has a length, and
  // a block has at most one part for each byte of an element.
  const uint64_t most = size + 4 * (uint64_t{header_.typesize} + 1);
  const uint64_t packed =
      std::min<uint64_t>(ends_[block] - starts_[block], most);
  constexpr uint64_t kAt = kHeader + 4;
  chunk_.resize(kAt + packed);
  file_.read(offset_ + starts_[block], std::span(chunk_).subspan(kAt));
  // The last block, if short, is never split. As a chunk of its own it is not
  // short, so the flag must say so.
  const bool is_short = size != header_.blocksize;
  chunk_[0] = std::byte{header_.format};
  chunk_[1] = std::byte{header_.codec_format};
  chunk_[2] = std::byte(header_.flags | (is_short ? kDontSplit : 0));
  chunk_[3] = std::byte{header_.typesize};
  put_u32(&chunk_[4], size);
  put_u32(&chunk_[8], size);
  put_u32(&chunk_[12], chunk_.size());
  put_u32(&chunk_[16], kAt);
  plain_.resize(size);
  if (!decompress_chunk(chunk_, plain_))
    throw input_error(where_, "bad blosc block {} of {}", block,
                      starts_.size());
  loaded_ = block;
}

void BloscChunk::read(uint64_t offset, std::span<std::byte> buffer) {
  if (header_.stored()) {
    file_.read(offset_ + kHeader + offset, buffer);
    return;
  }
  while (!buffer.empty()) {
    load(static_cast<uint32_t>(offset / header_.blocksize));
    const uint64_t at = offset % header_.blocksize;
    const size_t count = std::min<size_t>(buffer.size(), plain_.size() - at);
    std::memcpy(buffer.data(), plain_.data() + at, count);
    buffer = buffer.subspan(count);
    offset += count;
  }
}

uint64_t BloscChunk::memory() const {
  return 8 * starts_.size() + chunk_.capacity() + plain_.capacity();
}

}  // namespace ckpt::codec
