// SPDX-License-Identifier: Apache-2.0
// The decompressors of other libraries behind one interface. They know nothing
// of files or declared sizes: stream.h does.
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
    kEnded,  // the stream (perhaps one of several) ends here
    kBad,
  };
  virtual ~Decoder() = default;
  // Prepares for the first byte of a stream.
  virtual void restart() = 0;
  // Consumes the front of `input` and fills the front of `output`; both shrink.
  virtual Status step(std::span<const std::byte>& input,
                      std::span<std::byte>& output) = 0;
  // Bytes of memory held now.
  virtual uint64_t memory() const = 0;
};

// For kDeflate, kZlib, kGzip, kBzip2, kZstd and kLz4. `where` is for its
// errors. Throws resource_error for a codec that this build lacks.
std::unique_ptr<Decoder> make_decoder(Codec codec, const Where& where);

// "gzip": a codec's name in messages.
std::string_view name(Codec codec);

// True if several streams, one after the other, count as one.
bool concatenates(Codec codec);

// Throws resource_error for a codec whose library this build lacks.
[[noreturn]] void throw_missing(const Where& where, Codec codec,
                                std::string_view package);

}  // namespace ckpt::codec
