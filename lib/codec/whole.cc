// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/whole.h"

#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "lib/pickle/input.h"

#ifdef CKPT_HAVE_LZMA
#include <lzma.h>
#endif

namespace ckpt::codec {
namespace {

constexpr size_t kStep = size_t{1} << 20;

[[noreturn]] void fail_limit(const io::Handle& file, uint64_t limit) {
  throw input_error({file.path(), {}},
                    "inflates to more than the {} bytes allowed", limit);
}

// One LZ4 frame:
//
//   | magic | flags | size class | u64 content? | u32 dictionary? | check |
//   | u32 n | block of n bytes | u32 check? | … | u32 0 | u32 check? |
//
// The upper bit of n says that the block is stored. Blocks may copy from those
// before them.
class Lz4Frames {
 public:
  Lz4Frames(const io::Handle& file, uint64_t limit)
      : file_(file), limit_(limit), in_(file, 0, file.size(), UINT64_MAX) {}

  std::string unpack() {
    while (in_.left() > 0) frame();
    return std::move(plain_);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw input_error({file_.path(), {}}, "lz4: {} at byte {}", what,
                      in_.position());
  }

  void frame() {
    constexpr uint32_t kMagic = 0x184D2204;
    const auto magic = in_.number<uint32_t>();
    if ((magic & 0xFFFFFFF0) == 0x184D2A50) {  // to be skipped
      skip(in_.number<uint32_t>());
      return;
    }
    if (magic != kMagic) fail("no frame");
    const uint8_t flags = in_.byte();
    if (flags >> 6 != 1) fail("an unknown version");
    in_.byte();
    if ((flags & 8) != 0) in_.number<uint64_t>();
    if ((flags & 1) != 0) fail("a frame with a dictionary");
    in_.byte();
    constexpr uint32_t kStored = uint32_t{1} << 31;
    while (const auto size = in_.number<uint32_t>()) {
      const std::string_view bytes = in_.take(size & ~kStored);
      if ((size & kStored) != 0)
        add(bytes);
      else
        block(bytes);
      if ((flags & 16) != 0) in_.number<uint32_t>();
    }
    if ((flags & 4) != 0) in_.number<uint32_t>();
  }

  void skip(uint64_t count) {
    for (; count > kStep; count -= kStep) in_.take(kStep);
    in_.take(count);
  }

  void add(std::string_view bytes) {
    if (bytes.size() > limit_ - plain_.size()) fail_limit(file_, limit_);
    plain_ += bytes;
  }

  // Sequences: literals, then a copy of earlier bytes (lib/codec/lz4.h).
  void block(std::string_view bytes) {
    size_t at = 0;
    const auto byte = [&] {
      if (at == bytes.size()) fail("a block that is cut short");
      return static_cast<uint8_t>(bytes[at++]);
    };
    const auto length = [&](uint64_t bits) {
      uint64_t size = bits;
      if (bits != 15) return size;
      for (uint8_t more = 255; more == 255;) size += more = byte();
      return size;
    };
    while (at < bytes.size()) {
      const uint8_t token = byte();
      const uint64_t literals = length(token >> 4);
      if (literals > bytes.size() - at) fail("a block that is cut short");
      add(bytes.substr(at, literals));
      at += literals;
      if (at == bytes.size()) return;
      const size_t low = byte();
      const size_t back = low | size_t{byte()} << 8;
      copy(back, length(token & 15) + 4);
    }
  }

  void copy(size_t back, uint64_t count) {
    if (back == 0 || back > plain_.size()) fail("a copy from nowhere");
    if (count > limit_ - plain_.size()) fail_limit(file_, limit_);
    for (; count > 0; --count) plain_ += plain_[plain_.size() - back];
  }

  const io::Handle& file_;
  const uint64_t limit_;
  pickle::Input in_;
  std::string plain_;
};

#ifdef CKPT_HAVE_LZMA
class Unxz {
 public:
  explicit Unxz(const io::Handle& file) : file_(file) {
    // A window of more than this is not what a pickle was packed with.
    constexpr uint64_t kMemory = uint64_t{256} << 20;
    if (lzma_auto_decoder(&stream_, kMemory, LZMA_CONCATENATED) != LZMA_OK)
      throw resource_error({file.path(), {}}, "no memory to decompress xz");
  }
  ~Unxz() { lzma_end(&stream_); }
  Unxz(const Unxz&) = delete;
  Unxz& operator=(const Unxz&) = delete;

  std::string unpack(uint64_t limit) {
    std::string plain;
    std::string room(kStep, '\0');
    std::string block;
    lzma_ret status = LZMA_OK;
    for (uint64_t at = 0; status == LZMA_OK;) {
      if (stream_.avail_in == 0 && at < file_.size()) {
        block =
            file_.read_string(at, std::min<uint64_t>(kStep, file_.size() - at));
        at += block.size();
        stream_.next_in = reinterpret_cast<const uint8_t*>(block.data());
        stream_.avail_in = block.size();
      }
      stream_.next_out = reinterpret_cast<uint8_t*>(room.data());
      stream_.avail_out = room.size();
      status = lzma_code(&stream_, at < file_.size() ? LZMA_RUN : LZMA_FINISH);
      const size_t made = room.size() - stream_.avail_out;
      if (made > limit - plain.size()) fail_limit(file_, limit);
      plain.append(room, 0, made);
    }
    if (status != LZMA_STREAM_END)
      throw input_error({file_.path(), {}}, "xz: a broken stream");
    return plain;
  }

 private:
  const io::Handle& file_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
};
#endif

}  // namespace

std::string unpack_lz4(const io::Handle& file, uint64_t limit) {
  return Lz4Frames(file, limit).unpack();
}

std::string unpack_xz(const io::Handle& file, uint64_t limit) {
#ifdef CKPT_HAVE_LZMA
  return Unxz(file).unpack(limit);
#else
  (void)limit;
  throw resource_error({file.path(), {}},
                       "is compressed with xz, which this build lacks")
      .with_hint("install liblzma-dev and build ckpt again");
#endif
}

}  // namespace ckpt::codec
