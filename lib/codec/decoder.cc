// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/decoder.h"

#include <zlib.h>

#include <algorithm>

#include "lib/codec/lz4.h"

#ifdef CKPT_HAVE_BZIP2
#include <bzlib.h>
#endif
#ifdef CKPT_HAVE_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

namespace ckpt::codec {
namespace {

// zlib and bzip2 count in 32 bits.
constexpr size_t kMost = size_t{1} << 30;

template <class Byte>
unsigned clamped(std::span<Byte> bytes) {
  return static_cast<unsigned>(std::min(bytes.size(), kMost));
}

// zlib tells three framings apart by its window argument: raw, zlib, gzip.
class Inflate : public Decoder {
 public:
  Inflate(int window_bits, const Where& where) {
    if (inflateInit2(&stream_, window_bits) != Z_OK)
      throw resource_error(where, "no memory for an inflate window");
  }
  ~Inflate() override { inflateEnd(&stream_); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;

  void restart() override { inflateReset(&stream_); }

  Status step(std::span<const std::byte>& input,
              std::span<std::byte>& output) override {
    const unsigned given = clamped(input);
    const unsigned room = clamped(output);
    stream_.next_in =
        reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<Bytef*>(output.data());
    stream_.avail_out = room;
    const int status = inflate(&stream_, Z_NO_FLUSH);
    input = input.subspan(given - stream_.avail_in);
    output = output.subspan(room - stream_.avail_out);
    if (status == Z_STREAM_END) return Status::kEnded;
    return status == Z_OK || status == Z_BUF_ERROR ? Status::kMore
                                                   : Status::kBad;
  }

  uint64_t memory() const override { return 48 << 10; }

 private:
  z_stream stream_ = {};
};

#ifdef CKPT_HAVE_BZIP2
class Bunzip : public Decoder {
 public:
  explicit Bunzip(const Where& where) : where_(where) { begin(); }
  ~Bunzip() override { BZ2_bzDecompressEnd(&stream_); }
  Bunzip(const Bunzip&) = delete;
  Bunzip& operator=(const Bunzip&) = delete;

  // The library has no reset.
  void restart() override {
    BZ2_bzDecompressEnd(&stream_);
    begin();
  }

  Status step(std::span<const std::byte>& input,
              std::span<std::byte>& output) override {
    const unsigned given = clamped(input);
    const unsigned room = clamped(output);
    stream_.next_in =
        reinterpret_cast<char*>(const_cast<std::byte*>(input.data()));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<char*>(output.data());
    stream_.avail_out = room;
    const int status = BZ2_bzDecompress(&stream_);
    input = input.subspan(given - stream_.avail_in);
    output = output.subspan(room - stream_.avail_out);
    if (status == BZ_STREAM_END) return Status::kEnded;
    if (status == BZ_MEM_ERROR) no_memory();
    return status == BZ_OK ? Status::kMore : Status::kBad;
  }

  // Four bytes for each of a block's 900,000 bytes at most, plus tables.
  uint64_t memory() const override { return uint64_t{3700} << 10; }

 private:
  void begin() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) no_memory();
  }
  [[noreturn]] void no_memory() const {
    throw resource_error(where_, "no memory to decompress bzip2");
  }

  const Where where_;
  bz_stream stream_ = {};
};
#endif

#ifdef CKPT_HAVE_ZSTD
class Unzstd : public Decoder {
 public:
  explicit Unzstd(const Where& where)
      : where_(where), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!context_) no_memory();
  }

  void restart() override {
    ZSTD_DCtx_reset(context_.get(), ZSTD_reset_session_only);
  }

  Status step(std::span<const std::byte>& input,
              std::span<std::byte>& output) override {
    ZSTD_inBuffer in = {input.data(), input.size(), 0};
    ZSTD_outBuffer out = {output.data(), output.size(), 0};
    const size_t left = ZSTD_decompressStream(context_.get(), &out, &in);
    input = input.subspan(in.pos);
    output = output.subspan(out.pos);
    if (!ZSTD_isError(left)) return left ? Status::kMore : Status::kEnded;
    if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation) no_memory();
    if (ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
      throw resource_error(where_,
                           "the zstd frame wants a window of more than 128 MiB")
          .with_hint("recompress it with a window of at most 2^27 bytes");
    return Status::kBad;
  }

  uint64_t memory() const override { return ZSTD_sizeof_DCtx(context_.get()); }

 private:
  [[noreturn]] void no_memory() const {
    throw resource_error(where_, "no memory to decompress zstd");
  }

  const Where where_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
};
#endif

}  // namespace

std::unique_ptr<Decoder> make_decoder(Codec codec, const Where& where) {
  switch (codec) {
    case Codec::kDeflate:
      return std::make_unique<Inflate>(-MAX_WBITS, where);
    case Codec::kZlib:
      return std::make_unique<Inflate>(MAX_WBITS, where);
    case Codec::kGzip:
      return std::make_unique<Inflate>(MAX_WBITS + 16, where);
#ifdef CKPT_HAVE_BZIP2
    case Codec::kBzip2:
      return std::make_unique<Bunzip>(where);
#else
    case Codec::kBzip2:
      throw_missing(where, codec, "libbz2-dev");
#endif
#ifdef CKPT_HAVE_ZSTD
    case Codec::kZstd:
      return std::make_unique<Unzstd>(where);
#else
    case Codec::kZstd:
      throw_missing(where, codec, "libzstd-dev");
#endif
    case Codec::kLz4:
      return std::make_unique<Unlz4>();
    default:
      throw bug_error(where, "codec {} has no decoder",
                      static_cast<int>(codec));
  }
}

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::kRaw:
      return "raw";
    case Codec::kDeflate:
      return "deflate";
    case Codec::kZlib:
      return "zlib";
    case Codec::kGzip:
      return "gzip";
    case Codec::kBzip2:
      return "bzip2";
    case Codec::kZstd:
      return "zstd";
    case Codec::kBlosc:
      return "blosc";
    case Codec::kLz4:
      return "lz4";
    case Codec::kStored:
      return "stored";
    case Codec::kMemory:
      return "memory";
    case Codec::kFill:
      return "fill";
  }
  return "?";
}

bool concatenates(Codec codec) {
  return codec == Codec::kGzip || codec == Codec::kBzip2 ||
         codec == Codec::kZstd;
}

void throw_missing(const Where& where, Codec codec, std::string_view package) {
  throw resource_error(where, "is compressed with {}, which this build lacks",
                       name(codec))
      .with_hint(fmt::format("install {} and build ckpt again", package));
}

}  // namespace ckpt::codec
