// SPDX-License-Identifier: Apache-2.0
// Where everything in a new archive goes, to the byte as in torch 2.13
// (docs/formats/torch_pickle.md section 3), so that its readers may compute
// offsets instead of reading them.
#include <algorithm>
#include <unordered_set>

#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/zip/archive.h"
#include "lib/zip/headers.h"

namespace ckpt::zip {
namespace {

// The padding must fit the 16-bit length of the extra field, beside 4 bytes of
// "FB" and 28 of zip64.
constexpr uint64_t kMaxAlignment = kMax16 - 32;

constexpr uint64_t kMaxArchive = uint64_t{1} << 62;

// The extra field for what doesn't fit 32 bits. A local header is written
// before the data, so there the packed size is still zero.
std::string zip64_extra(uint64_t size, uint64_t packed_size,
                        uint64_t header_offset) {
  std::string values;
  if (size >= kMax32) {
    append(values, size);
    append(values, packed_size);
  }
  if (header_offset >= kMax32) append(values, header_offset);
  if (values.empty()) return values;
  std::string extra;
  append<uint16_t>(extra, kZip64Extra);
  append(extra, static_cast<uint16_t>(values.size()));
  return extra + values;
}

uint32_t clamp32(uint64_t value) {
  return static_cast<uint32_t>(std::min(value, kMax32));
}
uint16_t clamp16(uint64_t value) {
  return static_cast<uint16_t>(std::min(value, kMax16));
}

class Planner {
 public:
  explicit Planner(uint64_t alignment) : alignment_(alignment) {}

  void add(std::string name, const Record& record) {
    Placed placed{.name = std::move(name), .header_offset = at()};
    placed.size = record.content ? record.content->size() : record.size;
    if (placed.size > kMaxArchive || at() > kMaxArchive - placed.size)
      throw unfaithful_error({{}, placed.name},
                             "record of {} bytes at byte {} goes beyond 2^62",
                             placed.size, at());
    add_local_header(placed);
    plan_.data_offsets.push_back(at());
    if (record.content) {
      placed.crc32 = crc32(0, std::as_bytes(std::span(*record.content)));
      literal_ += *record.content;
    } else if (placed.size > 0) {
      placed.late = static_cast<uint32_t>(plan_.crcs.size());
      plan_.crcs.push_back({at(), at() + placed.size, {}});
      skip(placed.size);
    }
    if (placed.size > 0) add_descriptor(placed);
    placed_.push_back(std::move(placed));
  }

  PlannedArchive finish() {
    const uint64_t directory = at();
    for (const Placed& placed : placed_) add_directory_entry(placed);
    add_end(directory, at() - directory);
    plan_.size = at();
    skip(0);
    for (Literal& literal : plan_.literals) literal.bytes.shrink_to_fit();
    return std::move(plan_);
  }

 private:
  static constexpr uint32_t kKnown = UINT32_MAX;
  struct Placed {
    std::string name;
    uint64_t header_offset = 0;
    uint64_t size = 0;
    uint32_t crc32 = 0;
    uint32_t late = kKnown;  // index in crcs if the CRC comes with the payload
  };

  uint64_t at() const { return begin_ + literal_.size(); }

  // Ends the literal; `count` bytes of payload follow.
  void skip(uint64_t count) {
    const uint64_t next = at() + count;
    if (!literal_.empty())
      plan_.literals.push_back({begin_, std::move(literal_)});
    literal_.clear();
    begin_ = next;
  }

  // An empty record needs no descriptor: all its fields are zero.
  static uint16_t flags(const Placed& placed) {
    return placed.size > 0 ? kFlagUtf8 | kFlagDescriptor : kFlagUtf8;
  }

  void add_local_header(const Placed& placed) {
    const std::string extra = zip64_extra(placed.size, 0, placed.header_offset);
    const uint64_t start =
        at() + kLocalSize + placed.name.size() + extra.size() + 4;
    const uint64_t padding = (alignment_ - start % alignment_) % alignment_;
    append(literal_, kLocalSignature);
    append<uint16_t>(literal_, 0);  // version needed
    append(literal_, flags(placed));
    append(literal_, kStored);
    literal_.append(4 + 4 + 4 + 4, '\0');  // time, date, crc, two sizes
    append(literal_, static_cast<uint16_t>(placed.name.size()));
    append(literal_, static_cast<uint16_t>(extra.size() + 4 + padding));
    literal_ += placed.name;
    literal_ += extra;
    literal_ += "FB";
    append(literal_, static_cast<uint16_t>(padding));
    literal_.append(padding, 'Z');
  }

  // Writes a zero in place of a checksum that isn't known yet.
  void add_crc(const Placed& placed) {
    if (placed.late != kKnown) plan_.crcs[placed.late].at.push_back(at());
    append(literal_, placed.crc32);
  }

  void add_descriptor(const Placed& placed) {
    append(literal_, kDescriptorSignature);
    add_crc(placed);
    if (placed.size >= kMax32 || placed.header_offset >= kMax32) {
      append(literal_, placed.size);
      append(literal_, placed.size);
    } else {
      append(literal_, static_cast<uint32_t>(placed.size));
      append(literal_, static_cast<uint32_t>(placed.size));
    }
  }

  void add_directory_entry(const Placed& placed) {
    const std::string extra =
        zip64_extra(placed.size, placed.size, placed.header_offset);
    append(literal_, kDirectorySignature);
    append<uint16_t>(literal_, 0);  // made by
    append<uint16_t>(literal_, 0);  // version needed
    append(literal_, flags(placed));
    append(literal_, kStored);
    append<uint32_t>(literal_, 0);  // time, date
    add_crc(placed);
    append(literal_, clamp32(placed.size));
    append(literal_, clamp32(placed.size));
    append(literal_, static_cast<uint16_t>(placed.name.size()));
    append(literal_, static_cast<uint16_t>(extra.size()));
    append<uint16_t>(literal_, 0);  // comment length
    append<uint16_t>(literal_, 0);  // disk
    append<uint16_t>(literal_, 0);  // internal attributes
    append<uint32_t>(literal_, 0);  // external attributes
    append(literal_, clamp32(placed.header_offset));
    literal_ += placed.name;
    literal_ += extra;
  }

  // torch writes the zip64 end record whether it is needed or not.
  void add_end(uint64_t directory, uint64_t directory_size) {
    const uint64_t end64 = at();
    append(literal_, kEnd64Signature);
    append<uint64_t>(literal_, kEnd64Size - 12);
    append<uint16_t>(literal_, 0x031E);  // made by
    append<uint16_t>(literal_, 45);      // version needed
    append<uint64_t>(literal_, 0);       // two disks
    append<uint64_t>(literal_, placed_.size());
    append<uint64_t>(literal_, placed_.size());
    append(literal_, directory_size);
    append(literal_, directory);

    append(literal_, kLocatorSignature);
    append<uint32_t>(literal_, 0);  // disk
    append(literal_, end64);
    append<uint32_t>(literal_, 1);  // disks

    append(literal_, kEndSignature);
    append<uint32_t>(literal_, 0);  // two disks
    append(literal_, clamp16(placed_.size()));
    append(literal_, clamp16(placed_.size()));
    append(literal_, clamp32(directory_size));
    append(literal_, clamp32(directory));
    append<uint16_t>(literal_, 0);  // comment length
  }

  const uint64_t alignment_;
  uint64_t begin_ = 0;   // of literal_
  std::string literal_;  // grows until payload comes
  std::vector<Placed> placed_;
  PlannedArchive plan_;
};

}  // namespace

PlannedArchive plan_archive(const std::string& root,
                            const std::vector<Record>& records,
                            uint64_t alignment) {
  if (root.empty() || root.find('/') != std::string::npos)
    throw bug_error({}, "archive root '{}'", root);
  if (alignment == 0 || alignment > kMaxAlignment)
    throw unfaithful_error({}, "alignment {} in a zip archive, at most {}",
                           alignment, kMaxAlignment);
  std::unordered_set<std::string_view> names;
  Planner planner(alignment);
  for (const Record& record : records) {
    const std::string name = root + "/" + record.name;
    if (record.name.empty() || name.size() > kMax16)
      throw unfaithful_error({{}, name.substr(0, 100)},
                             "a record name of {} bytes, at most {}",
                             name.size(), kMax16);
    if (!names.insert(record.name).second)
      throw bug_error({{}, name}, "record planned twice");
    planner.add(name, record);
  }
  return planner.finish();
}

}  // namespace ckpt::zip
