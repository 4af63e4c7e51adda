// SPDX-License-Identifier: Apache-2.0
#include "lib/zip/directory.h"

#include <algorithm>
#include <string>

#include "ckpt/error.h"
#include "lib/zip/headers.h"

namespace ckpt::zip {
namespace {

// The end record and what may precede it: a comment is at most 64 KiB.
struct Tail {
  std::string bytes;
  uint64_t offset = 0;  // in the file
};

Tail read_tail(const io::Handle& file) {
  const uint64_t size = std::min(file.size(), kLocatorSize + kEndSize + kMax16);
  return {file.read_string(file.size() - size, size), file.size() - size};
}

// The start of the end record in the tail. The comment runs exactly to the end
// of the file, so junk after the archive is not a comment. A comment that looks
// like an end record would let two readers see two different archives.
uint64_t find_end(const io::Handle& file, const Tail& tail) {
  constexpr std::string_view kMark = "PK\5\6";
  constexpr auto kNone = std::string::npos;
  size_t found = kNone;
  for (size_t at = tail.bytes.find(kMark); at != kNone;
       at = tail.bytes.find(kMark, at + 1)) {
    const bool complete = at + kEndSize <= tail.bytes.size();
    const bool fits =
        complete && at + kEndSize + load<uint16_t>(tail.bytes, at + 20) ==
                        tail.bytes.size();
    if (found != kNone)
      throw input_error({file.path(), {}},
                        "zip archive with two end records, at bytes {} and {}",
                        tail.offset + found, tail.offset + at);
    if (fits) found = at;
  }
  if (found == kNone)
    throw input_error(
        {file.path(), {}},
        "the zip archive has no end record (looked for in the last "
        "{} of {} bytes)",
        tail.bytes.size(), file.size())
        .with_hint(
            "the file was cut short, or something was appended to it; "
            "copy or download it again");
  return found;
}

void check_one_disk(const io::Handle& file, uint64_t disk, uint64_t start) {
  if (disk != 0 || start != 0)
    throw input_error({file.path(), {}},
                      "zip archive split over disks: this is disk {}, the "
                      "directory begins on disk {}",
                      disk, start);
}

// A field of the end record is its zip64 value or all ones.
void check_agree(const io::Handle& file, const char* what, uint64_t value,
                 uint64_t value64, uint64_t ones) {
  if (value != ones && value != value64)
    throw input_error({file.path(), {}},
                      "zip end records don't agree on the {}: {} and {}", what,
                      value, value64);
}

// The zip64 end record, which is directly before its locator.
Directory read_end64(const io::Handle& file, uint64_t locator_at,
                     std::string_view locator) {
  const auto at = load<uint64_t>(locator, 8);
  if (locator_at < kEnd64Size || at > locator_at - kEnd64Size)
    throw input_error({file.path(), {}},
                      "zip64 locator at byte {} points to byte {}", locator_at,
                      at);
  const std::string end = file.read_string(at, kEnd64Size);
  if (load<uint32_t>(end, 0) != kEnd64Signature)
    throw input_error({file.path(), {}}, "no zip64 end record at byte {}", at);
  if (load<uint64_t>(end, 4) != locator_at - at - 12)
    throw input_error(
        {file.path(), {}},
        "zip64 end record at byte {} holds {} bytes, {} follow it", at,
        load<uint64_t>(end, 4), locator_at - at - 12);
  check_one_disk(file, load<uint32_t>(end, 16), load<uint32_t>(end, 20));
  if (load<uint64_t>(end, 24) != load<uint64_t>(end, 32))
    throw input_error({file.path(), {}},
                      "zip64 end record: {} entries on this disk, {} in all",
                      load<uint64_t>(end, 24), load<uint64_t>(end, 32));
  const Directory directory = {.offset = load<uint64_t>(end, 48),
                               .size = load<uint64_t>(end, 40),
                               .count = load<uint64_t>(end, 32)};
  if (directory.offset > at || at - directory.offset != directory.size)
    throw input_error({file.path(), {}},
                      "zip directory of {} bytes at byte {} does not end at "
                      "the zip64 end record at byte {}",
                      directory.size, directory.offset, at);
  return directory;
}

}  // namespace

Directory find_directory(const io::Handle& file) {
  const Tail tail = read_tail(file);
  const uint64_t at = find_end(file, tail);
  const std::string_view end = std::string_view(tail.bytes).substr(at);
  const uint64_t disk = load<uint16_t>(end, 4);
  const uint64_t start = load<uint16_t>(end, 6);
  const uint64_t here = load<uint16_t>(end, 8);
  const Directory directory = {.offset = load<uint32_t>(end, 16),
                               .size = load<uint32_t>(end, 12),
                               .count = load<uint16_t>(end, 10)};
  // In a zip64 archive the fields may be all ones instead. torch refuses
  // others.
  const auto no_disk = [](uint64_t n) { return n == kMax16 ? 0 : n; };
  check_one_disk(file, no_disk(disk), no_disk(start));
  if (at >= kLocatorSize) {
    const std::string_view locator =
        std::string_view(tail.bytes).substr(at - kLocatorSize, kLocatorSize);
    if (load<uint32_t>(locator, 0) == kLocatorSignature) {
      const Directory wide =
          read_end64(file, tail.offset + at - kLocatorSize, locator);
      check_agree(file, "entries", directory.count, wide.count, kMax16);
      check_agree(file, "directory's size", directory.size, wide.size, kMax32);
      check_agree(file, "directory's offset", directory.offset, wide.offset,
                  kMax32);
      return wide;
    }
  }
  if (here != directory.count)
    throw input_error({file.path(), {}},
                      "zip end record: {} entries on this disk, {} in all",
                      here, directory.count);
  const uint64_t end_at = tail.offset + at;
  if (directory.offset > end_at || end_at - directory.offset != directory.size)
    throw input_error({file.path(), {}},
                      "zip directory of {} bytes at byte {} does not end at "
                      "the end record at byte {}",
                      directory.size, directory.offset, end_at);
  return directory;
}

}  // namespace ckpt::zip
