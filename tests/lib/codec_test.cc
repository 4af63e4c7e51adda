// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/codec/stream.h"
#include "tests/support/temp_file.h"

#ifdef CKPT_HAVE_BZIP2
#include <bzlib.h>
#endif
#ifdef CKPT_HAVE_ZSTD
#include <zstd.h>
#endif
#ifdef CKPT_HAVE_BLOSC
#include <blosc.h>
#endif

namespace ckpt::codec {
namespace {

using test::TempFile;

std::string zlib_pack(std::string_view text, int window_bits) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, window_bits, 8,
                       Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));  // NOLINT
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

#ifdef CKPT_HAVE_BZIP2
std::string bzip2_pack(std::string_view text) {
  auto size = static_cast<unsigned>(text.size() + text.size() / 50 + 1000);
  std::string packed(size, '\0');
  REQUIRE(BZ2_bzBuffToBuffCompress(packed.data(), &size,
                                   const_cast<char*>(text.data()),  // NOLINT
                                   static_cast<unsigned>(text.size()), 1, 0,
                                   0) == BZ_OK);
  packed.resize(size);
  return packed;
}
#endif

#ifdef CKPT_HAVE_ZSTD
std::string zstd_pack(std::string_view text, bool checksum) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, checksum ? 1 : 0);
  const size_t size = ZSTD_compress2(context, packed.data(), packed.size(),
                                     text.data(), text.size());
  ZSTD_freeCCtx(context);
  REQUIRE(!ZSTD_isError(size));
  packed.resize(size);
  return packed;
}
#endif

#ifdef CKPT_HAVE_BLOSC
struct BloscWay {
  const char* inside = "lz4";
  int shuffle = BLOSC_SHUFFLE;
  size_t typesize = 4;
  size_t blocksize = 0;  // 0: as blosc chooses
  int threads = 1;
  int level = 5;
};

std::string blosc_pack(std::string_view text, const BloscWay& way) {
  std::string packed(text.size() + BLOSC_MAX_OVERHEAD, '\0');
  const int size = blosc_compress_ctx(
      way.level, way.shuffle, way.typesize, text.size(), text.data(),
      packed.data(), packed.size(), way.inside, way.blocksize, way.threads);
  REQUIRE(size > 0);
  packed.resize(static_cast<size_t>(size));
  return packed;
}
#endif

// numcodecs' frame around a block: repeats from the last 64 KiB are copied.
std::string lz4_pack(std::string_view text) {
  std::string packed;
  const auto number = [&](uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      packed += static_cast<char>(value >> (8 * i));
  };
  const auto more = [&](uint64_t length) {
    if (length < 15) return;
    for (length -= 15; length >= 255; length -= 255) number(255, 1);
    number(length, 1);
  };
  const auto sequence = [&](size_t from, size_t to, size_t back, size_t copy) {
    const uint64_t literals = to - from;
    const uint64_t match = copy ? copy - 4 : 0;
    number(
        std::min<uint64_t>(literals, 15) << 4 | std::min<uint64_t>(match, 15),
        1);
    more(literals);
    packed += text.substr(from, literals);
    if (copy == 0) return;
    number(back, 2);
    more(match);
  };
  number(text.size(), 4);
  std::map<std::string_view, size_t> seen;
  size_t from = 0;  // of literals
  for (size_t at = 0; at + 12 < text.size();) {
    const auto [place, is_new] = seen.try_emplace(text.substr(at, 4), at);
    const size_t before = std::exchange(place->second, at);
    if (is_new || at - before > 0xFFFF) {
      ++at;
      continue;
    }
    size_t copy = 4;  // the last five bytes are literals
    while (at + copy + 5 < text.size() &&
           text[before + copy] == text[at + copy])
      ++copy;
    sequence(from, at, at - before, copy);
    from = at += copy;
  }
  sequence(from, text.size(), 0, 0);
  return packed;
}

struct Packer {
  const char* name;
  Codec codec;
  std::function<std::string(std::string_view)> pack;
};

std::vector<Packer> packers() {
  std::vector<Packer> all = {
      {"deflate", Codec::kDeflate,
       [](std::string_view t) { return zlib_pack(t, -MAX_WBITS); }},
      {"zlib", Codec::kZlib,
       [](std::string_view t) { return zlib_pack(t, MAX_WBITS); }},
      {"gzip", Codec::kGzip,
       [](std::string_view t) { return zlib_pack(t, MAX_WBITS + 16); }},
      {"lz4", Codec::kLz4, lz4_pack},
  };
#ifdef CKPT_HAVE_BZIP2
  all.push_back({"bzip2", Codec::kBzip2, bzip2_pack});
#endif
#ifdef CKPT_HAVE_ZSTD
  for (const bool checksum : {false, true})
    all.push_back({"zstd", Codec::kZstd, [checksum](std::string_view t) {
                     return zstd_pack(t, checksum);
                   }});
#endif
#ifdef CKPT_HAVE_BLOSC
  const BloscWay ways[] = {
      {},
      {.inside = "blosclz"},
      {.inside = "blosclz", .shuffle = BLOSC_NOSHUFFLE, .level = 9},
      {.inside = "lz4hc", .shuffle = BLOSC_BITSHUFFLE, .typesize = 2},
      {.inside = "zlib", .typesize = 8, .blocksize = 4096},
      {.inside = "zstd", .shuffle = BLOSC_BITSHUFFLE, .blocksize = 1 << 16},
      {.inside = "zstd", .typesize = 1},
      {.inside = "lz4", .typesize = 3, .blocksize = 10'000},
      {.inside = "lz4", .typesize = 8, .blocksize = 1 << 14, .threads = 4},
      {.inside = "lz4", .typesize = 255},
      {.level = 0},
  };
  for (const BloscWay& way : ways)
    all.push_back({way.inside, Codec::kBlosc,
                   [way](std::string_view t) { return blosc_pack(t, way); }});
#endif
  return all;
}

Stream open(const TempFile& file, Codec codec, uint64_t packed, uint64_t size) {
  auto handle =
      std::make_shared<const io::Handle>(io::Handle::open_read(file.path));
  return Stream(handle,
                {.path = file.path,
                 .size = size,
                 .codec = codec,
                 .packed_offset = 3,
                 .packed_size = packed},
                "r");
}

std::string read_all(const Packer& packer, const std::string& packed,
                     uint64_t size) {
  const TempFile file("abc" + packed + "tail");
  Stream stream = open(file, packer.codec, packed.size(), size);
  std::string text(size, '\0');
  stream.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Runs of bytes below `range`, so that every codec has something to find; 256:
// noise.
std::string random_text(std::mt19937_64& random, uint64_t size,
                        uint64_t range) {
  std::string text;
  while (text.size() < size)
    text.append(range == 256 ? 1 : 1 + random() % 40,
                static_cast<char>(random() % range));
  text.resize(size);
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes += static_cast<char>(
        std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  return bytes;
}

// What a call throws; 0 if nothing.
struct Outcome {
  int code = 0;
  std::string message;
};
template <class Call>
Outcome outcome(const Call& call) {
  try {
    call();
    return {0, ""};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
}

}  // namespace

TEST_CASE("codec: reads what the libraries' own compressors wrote") {
  std::mt19937_64 random(4);
  for (const Packer& packer : packers())
    for (const uint64_t range : {2, 100, 256})  // compresses well, less, not
      for (const uint64_t size : {1, 15, 1000, 65'536, 700'001}) {
        CAPTURE(packer.name);
        CAPTURE(size);
        const std::string text = random_text(random, size, range);
        const std::string packed = packer.pack(text);
        CHECK(read_all(packer, packed, size) == text);
        const auto memory = io::Handle::of_memory(packed, "packed");
        CHECK(decompress(memory, packer.codec, size) == text);
        CHECK(measure(memory, packer.codec, size) == size);
        CHECK(outcome([&] {
                decompress(memory, packer.codec, size - 1);
              }).code == 4);
      }
}

TEST_CASE("codec: reads anywhere, forwards and backwards") {
  std::mt19937_64 random(5);
  for (const Packer& packer : packers()) {
    CAPTURE(packer.name);
    const std::string text = random_text(random, 700'000, 50);
    const std::string packed = packer.pack(text);
    const TempFile file("abc" + packed + "tail");
    Stream stream = open(file, packer.codec, packed.size(), text.size());
    for (int round = 0; round < 20; ++round) {
      const uint64_t at = random() % text.size();
      std::string part(random() % (text.size() - at + 1), '\0');
      stream.read(at, std::as_writable_bytes(std::span(part)));
      CHECK(part == std::string_view(text).substr(at, part.size()));
    }
    CHECK(stream.memory() < 12 << 20);
  }
}

TEST_CASE("codec: several streams one after the other") {
  std::mt19937_64 random(6);
  for (const Packer& packer : packers()) {
    CAPTURE(packer.name);
    const std::string a = random_text(random, 100'000, 9);
    const std::string b = random_text(random, 50'000, 90);
    const std::string both = packer.pack(a) + packer.pack(b);
    const bool joins = packer.codec == Codec::kGzip ||
                       packer.codec == Codec::kBzip2 ||
                       packer.codec == Codec::kZstd;
    if (joins)
      CHECK(read_all(packer, both, 150'000) == a + b);
    else
      CHECK(outcome([&] { read_all(packer, both, 150'000); }).code == 4);
    // The first one alone is not everything.
    CHECK(outcome([&] { read_all(packer, both, 100'000); }).code == 4);
  }
}

TEST_CASE("codec: data of another size than declared, cut, or with a tail") {
  std::mt19937_64 random(7);
  for (const Packer& packer : packers()) {
    CAPTURE(packer.name);
    const std::string text = random_text(random, 100'000, 30);
    const std::string packed = packer.pack(text);
    const auto code = [&](const std::string& bytes, uint64_t size) {
      const Outcome result = outcome([&] { read_all(packer, bytes, size); });
      if (result.code) CHECK(result.message.find(": r: ") != std::string::npos);
      return result.code;
    };
    CHECK(code(packed, 99'999) == 4);
    CHECK(code(packed, 100'001) == 4);
    CHECK(code(packed, 0) == 4);
    CHECK(code(packed + "x", 100'000) == 4);
    CHECK(code("", 100'000) == 4);
    for (const size_t cut : {1, 2, 10, 1000})
      CHECK(code(packed.substr(0, packed.size() - cut), 100'000) == 4);
    for (const size_t keep : {0, 1, 3, 15, 16, 17, 20})
      CHECK(code(packed.substr(0, keep), 100'000) == 4);
  }
}

// Not all codecs have a checksum: damage may go unseen, but must neither crash
// nor hang, and a codec with a checksum must notice.
TEST_CASE("codec: any byte may be wrong") {
  std::mt19937_64 random(8);
  for (const Packer& packer : packers()) {
    CAPTURE(packer.name);
    const std::string text = random_text(random, 3000, 30);
    const std::string packed = packer.pack(text);
    for (int round = 0; round < 500; ++round) {
      std::string bad = packed;
      // Headers matter most.
      const size_t reach =
          round % 2 ? bad.size() : std::min<size_t>(64, bad.size());
      bad[random() % reach] = static_cast<char>(random());
      std::string read;
      const Outcome result =
          outcome([&] { read = read_all(packer, bad, text.size()); });
      CAPTURE(result.message);
      CHECK((result.code == 0 || result.code == 4 || result.code == 7));
      const bool checked = packer.codec == Codec::kGzip ||
                           packer.codec == Codec::kZlib ||
                           packer.codec == Codec::kBzip2;
      if (result.code == 0 && checked) CHECK(read == text);
      outcome([&] {
        decompress(io::Handle::of_memory(bad, "bad"), packer.codec, 1 << 20);
      });
    }
  }
}

TEST_CASE("lz4: blocks that don't fit what they say") {
  using namespace std::string_literals;
  const Packer packer = {"lz4", Codec::kLz4, {}};
  struct Row {
    std::string packed;
    uint64_t size;
    bool good;
  };
  const Row rows[] = {
      {"\x02\0\0\0\x20"
       "ab"s,
       2, true},
      {"\0\0\0\0\0"s, 0, true},
      {"\x0c\0\0\0\x12"
       "x\x01\0\x50"
       "vwxyz"s,
       12, true},
      {"\x02\0\0\0\x20"
       "ab"s,
       3, false},  // too few
      {"\x02\0\0\0\x30"
       "abc"s,
       2, false},  // too many literals
      {"\x0c\0\0\0\x12"
       "x\0\0\x50"
       "vwxyz"s,
       12, false},  // a copy of itself
      {"\x0c\0\0\0\x12"
       "x\x02\0\x50"
       "vwxyz"s,
       12, false},  // from before
      {"\x04\0\0\0\x12"
       "x\x01\0\x50"
       "vwxyz"s,
       4, false},  // too many copies
      {"\x05\0\0\0\xf0"s + std::string(90, '\xff'), 5, false},
      {"\x02\0\0\0\x20"s, 2, false},  // cut
      {"\x02\0\0"s, 2, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.packed.size());
    CAPTURE(row.size);
    const Outcome result =
        outcome([&] { read_all(packer, row.packed, row.size); });
    CAPTURE(result.message);
    CHECK(result.code == (row.good ? 0 : 4));
  }
}

// Expected: what numcodecs 0.15.2's Delta(plain, stored) encodes and decodes.
TEST_CASE("delta: elements from differences, read anywhere") {
  struct Row {
    Delta delta;
    const char* stored;
    const char* plain;
  };
  const Row rows[] = {
      {{DType::i32, DType::i32},
       "07000000f6ffffff020000800100000005000080",
       "07000000fdffffffffffff7f0000008005000000"},
      {{DType::u8, DType::u16}, "0702f10108", "07000900fa00fb000301"},
      {{DType::i16, DType::i64},
       "0100040097ff6b00",
       "010000000000000005000000000000009cffffffffffffff0700000000000000"},
      {{DType::f32, DType::f32},
       "00000080cdcccc3d9a995940000090c0",
       "00000080cdcccc3d00006040000080bf"},
      {{DType::f64, DType::f32},
       "000000a09999b93f000000c0cccc04c0000000e0c2ee4246000000e0c2ee42c6",
       "cdcccc3d000020c01776177200000000"},
  };
  for (const Row& row : rows) {
    const std::string stored = from_hex(row.stored);
    const std::string plain = from_hex(row.plain);
    CAPTURE(row.stored);
    for (const bool packed : {false, true}) {
      const std::string inside = packed ? zlib_pack(stored, MAX_WBITS) : stored;
      const TempFile file("abc" + inside + "tail");
      auto handle =
          std::make_shared<const io::Handle>(io::Handle::open_read(file.path));
      File source{.path = file.path,
                  .size = plain.size(),
                  .codec = packed ? Codec::kZlib : Codec::kStored,
                  .packed_offset = 3,
                  .packed_size = inside.size()};
      source.delta = row.delta;
      Stream stream(handle, source, "r");
      for (size_t at = 0; at < plain.size(); ++at) {
        const size_t begin = plain.size() - 1 - at;
        std::string part(plain.size() - begin, '\0');
        stream.read(begin, std::as_writable_bytes(std::span(part)));
        CHECK(part == plain.substr(begin));
      }
      source.size -= 1;
      CHECK(outcome([&] {
              Stream bad(handle, source, "r");
              std::string part(1, '\0');
              bad.read(0, std::as_writable_bytes(std::span(part)));
            }).code == 4);
    }
  }
}

#ifdef CKPT_HAVE_BLOSC
TEST_CASE("blosc: headers that don't fit their chunk") {
  std::mt19937_64 random(9);
  const std::string text = random_text(random, 100'000, 30);
  const std::string packed = blosc_pack(text, {.blocksize = 1 << 14});
  const Packer packer = {"blosc", Codec::kBlosc, {}};
  const auto with = [&](size_t at, uint32_t value) {
    std::string bytes = packed;
    for (size_t i = 0; i < 4; ++i)
      bytes.at(at + i) = static_cast<char>(value >> (8 * i));
    return bytes;
  };
  const auto message = [&](const std::string& bytes) {
    return outcome([&] { read_all(packer, bytes, text.size()); }).message;
  };
  struct Row {
    std::string bytes;
    const char* why;
  };
  const Row rows[] = {
      {with(4, 99'999),
       "blosc chunk of 99999 plain bytes, 100000 are expected"},
      {with(4, 0xFFFFFFFF), "blocks"},
      {with(8, 0), "in blocks of 0"},
      {with(8, 1), "blocks"},
      {with(8, 0xFFFFFFFF), "in blocks of 4294967295"},
      {with(12, 17), "says it has 17 bytes"},
      {with(16, 0), "blosc block at byte 0"},
      {with(16, 0x7FFFFFFF), "blosc block at byte 2147483647"},
      {with(20, 1 << 14), "blosc block"},
      {with(0, 0x04010109), "format 9"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    CHECK(message(row.bytes).find(row.why) != std::string::npos);
  }
}
#endif

}  // namespace ckpt::codec
