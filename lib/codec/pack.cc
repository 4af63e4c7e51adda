// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/pack.h"

#include <algorithm>

#include "lib/codec/decoder.h"

#ifdef CKPT_HAVE_ZSTD
#include <zstd.h>
#endif

namespace ckpt::codec {

std::vector<std::byte> pack_zstd(std::span<const std::byte> plain) {
#ifdef CKPT_HAVE_ZSTD
  std::vector<std::byte> packed(ZSTD_compressBound(plain.size()));
  const size_t size = ZSTD_compress(packed.data(), packed.size(), plain.data(),
                                    plain.size(), ZSTD_CLEVEL_DEFAULT);
  if (ZSTD_isError(size) != 0)
    throw resource_error({}, "zstd: {}", ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
#else
  (void)plain;
  throw_missing({}, Codec::kZstd, "libzstd");
#endif
}

uint64_t most_packed(uint64_t bytes) {
#ifdef CKPT_HAVE_ZSTD
  return ZSTD_compressBound(bytes);
#else
  (void)bytes;
  throw_missing({}, Codec::kZstd, "libzstd");
#endif
}

void unpack_zstd(std::span<const std::byte> packed, std::span<std::byte> plain,
                 const Where& where) {
  unpack(Codec::kZstd, packed, plain, where);
}

void unpack(Codec codec, std::span<const std::byte> packed,
            std::span<std::byte> plain, const Where& where) {
  const std::unique_ptr<Decoder> decoder = make_decoder(codec, where);
  const size_t wanted = plain.size();
  decoder->restart();
  auto status = Decoder::Status::kMore;
  while (status == Decoder::Status::kMore) {
    const size_t before = packed.size() + plain.size();
    status = decoder->step(packed, plain);
    if (packed.size() + plain.size() == before) break;
  }
  if (status != Decoder::Status::kEnded || !packed.empty() || !plain.empty())
    throw input_error(where, "a block makes {} bytes or more, expected {}",
                      wanted - plain.size(), wanted);
}

void split_planes(std::span<const std::byte> elements, size_t size,
                  std::span<std::byte> planes) {
  const size_t count = elements.size() / size;
  for (size_t plane = 0; plane < size; ++plane)
    for (size_t i = 0; i < count; ++i)
      planes[plane * count + i] = elements[i * size + plane];
}

void join_planes(std::span<const std::byte> planes, size_t size,
                 std::span<std::byte> elements) {
  const size_t count = elements.size() / size;
  for (size_t plane = 0; plane < size; ++plane)
    for (size_t i = 0; i < count; ++i)
      elements[i * size + plane] = planes[plane * count + i];
}

}  // namespace ckpt::codec
