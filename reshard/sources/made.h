// SPDX-License-Identifier: Apache-2.0
// Files that are on no disk: their bytes are computed from other files' as they
// are read. To a plan one is like any other file, so computed bytes can be cut,
// joined, cast and digested like stored ones.
//
// Such a File has Codec::kMemory, "bytes of the caller's": `memory` is the
// Made, and `fill`, which memory does not use, says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::reshard {

// Reads exactly that many bytes of a file at an offset.
using ReadFile =
    std::function<void(const File&, uint64_t, std::span<std::byte>)>;

class Made {
 public:
  virtual ~Made() = default;
  // Bytes [offset, offset + buffer.size()) of the made file. Threads call it
  // concurrently.
  virtual void read(uint64_t offset, std::span<std::byte> buffer,
                    const ReadFile& read) const = 0;
};

// A tensor of another file, in another dtype.
class Borrowed : public Made {
 public:
  Borrowed(File file, uint64_t begin, DType from, DType to)
      : file_(std::move(file)), begin_(begin), from_(from), to_(to) {}
  void read(uint64_t offset, std::span<std::byte> buffer,
            const ReadFile& read) const override;
  const File& file() const { return file_; }
  uint64_t begin() const { return begin_; }
  DType from() const { return from_; }
  DType to() const { return to_; }

 private:
  const File file_;
  const uint64_t begin_;
  const DType from_, to_;
};

inline constexpr std::string_view kMadeMark = "made";

inline bool is_made(const File& file) {
  return file.codec == Codec::kMemory && file.fill == kMadeMark;
}

// `made` must outlive the catalog. Errors name `path`.
inline File made_file(const Made& made, std::string path, uint64_t size) {
  return {.path = std::move(path),
          .size = size,
          .codec = Codec::kMemory,
          .packed_offset = 0,
          .packed_size = 0,
          .memory = reinterpret_cast<const std::byte*>(&made),
          .fill = std::string(kMadeMark)};
}

inline const Made& made_of(const File& file) {
  return *reinterpret_cast<const Made*>(file.memory);
}

}  // namespace ckpt::reshard
