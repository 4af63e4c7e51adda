// SPDX-License-Identifier: Apache-2.0
// Any bytes as a compressed stream: refused with an Error, or the output is the
// same however it is read, and never more than was asked for.
//
//   input   codec, then the packed bytes
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "ckpt/error.h"
#include "lib/codec/stream.h"

namespace {

using namespace ckpt;

constexpr Codec kCodecs[] = {Codec::kDeflate, Codec::kZlib, Codec::kGzip,
                             Codec::kBzip2,   Codec::kZstd, Codec::kBlosc,
                             Codec::kLz4};
constexpr uint64_t kLimit = 1 << 20;

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// In steps, with a step back in the middle.
std::string read_in_parts(const std::string& packed, Codec codec,
                          uint64_t size) {
  auto file =
      std::make_shared<const io::Handle>(io::Handle::of_memory(packed, "fuzz"));
  codec::Stream stream(file, {.path = "fuzz",
                              .size = size,
                              .codec = codec,
                              .packed_offset = 0,
                              .packed_size = packed.size()});
  std::string plain(size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(plain));
  const uint64_t step = std::max<uint64_t>(1, size / 5);
  stream.read(size / 2, bytes.subspan(size / 2));
  for (uint64_t at = 0; at < size; at += step)
    stream.read(at, bytes.subspan(at, std::min(step, size - at)));
  return plain;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Codec codec = kCodecs[data[0] % std::size(kCodecs)];
  const std::string packed(reinterpret_cast<const char*>(data + 1), size - 1);
  std::string plain;
  try {
    plain =
        codec::decompress(io::Handle::of_memory(packed, "fuzz"), codec, kLimit);
  } catch (const Error&) {
    return 0;
  }
  if (plain.size() > kLimit) found("more than the limit");
  // What decompressed once does so again, to exactly its size.
  if (read_in_parts(packed, codec, plain.size()) != plain)
    found("parts differ from the whole");
  for (const uint64_t other : {plain.size() + 1, plain.size() - 1}) {
    if (other > kLimit) continue;
    try {
      read_in_parts(packed, codec, other);
    } catch (const Error&) {
      continue;
    }
    if (other != 0) found("another size is as good");
  }
  return 0;
}
