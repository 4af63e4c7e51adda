// SPDX-License-Identifier: Apache-2.0
// The decompressors of other libraries behind one interface. They know
// nothing of files and declared sizes: stream.h does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/error.h"

namespace ckpt::codec {

class Decoder {
 public:
  enum class Status : uint8_t {
    kMore,   // needs input or room
    kEnded,  // the stream (one of several, maybe) ends here
    kBad,
  };
  virtual ~Decoder() = default;
  // Ready for the first byte of a stream.
  virtual void restart() = 0;
  // Takes from the front of `input`, makes the front of `output`; both shrink.
  virtual Status step(std::span<const std::byte>& input,
                      std::span<std::byte>& output) = 0;
  // Bytes that it holds now.
  virtual uint64_t memory() const = 0;
};

// For kDeflate, kZlib, kGzip, kBzip2, kZstd and kLz4. `where` is for its
// errors: a resource_error for a codec that this build lacks.
std::unique_ptr<Decoder> make_decoder(Codec codec, const Where& where);

// "gzip": what messages call a codec.
std::string_view name(Codec codec);

// True if several streams, one after the other, are one.
bool concatenates(Codec codec);

// Throws the resource_error of a codec whose library this build lacks.
[[noreturn]] void throw_missing(const Where& where, Codec codec,
                                std::string_view package);

}  // namespace ckpt::codec
