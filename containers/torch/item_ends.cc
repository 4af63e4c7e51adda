// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/item_ends.h"

#include <array>
#include <span>

#include "lib/hash/crc32.h"
#include "lib/zip/headers.h"

namespace ckpt::torch {
namespace {

using zip::load;

constexpr size_t kMaxRecords = 16;

struct Record {
  std::string_view name;
  uint64_t header = 0;  // where the local header begins
  uint64_t size = 0;
  uint32_t crc32 = 0;
};

// Finds a byte range of the archive in whichever end has it.
class Bytes {
 public:
  Bytes(std::string_view head, std::string_view tail, uint64_t size)
      : head_(head), tail_(tail), tail_at_(size - tail.size()) {}

  // Empty if neither end has all of it.
  std::string_view get(uint64_t offset, uint64_t count) const {
    if (offset <= head_.size() && count <= head_.size() - offset)
      return head_.substr(offset, count);
    if (offset >= tail_at_ && offset - tail_at_ <= tail_.size() &&
        count <= tail_.size() - (offset - tail_at_))
      return tail_.substr(offset - tail_at_, count);
    return {};
  }

 private:
  std::string_view head_;
  std::string_view tail_;
  uint64_t tail_at_;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t count = 0;
};

// True if a field of the end record equals the zip64 value or refers to it.
bool agrees(uint64_t value, uint64_t wide, uint64_t ones) {
  return value == wide || value == ones;
}

std::optional<Directory> find_directory(const Bytes& bytes, uint64_t size) {
  if (size < zip::kEndSize) return std::nullopt;
  const uint64_t end_at = size - zip::kEndSize;
  const std::string_view end = bytes.get(end_at, zip::kEndSize);
  if (end.empty() || load<uint32_t>(end, 0) != zip::kEndSignature ||
      load<uint32_t>(end, 4) != 0 ||  // disks
      load<uint16_t>(end, 8) != load<uint16_t>(end, 10) ||
      load<uint16_t>(end, 20) != 0)  // comment
    return std::nullopt;
  Directory found{load<uint32_t>(end, 16), load<uint32_t>(end, 12),
                  load<uint16_t>(end, 10)};
  uint64_t stop = end_at;
  constexpr uint64_t kWide = zip::kLocatorSize + zip::kEnd64Size;
  const std::string_view wide =
      end_at >= kWide ? bytes.get(end_at - kWide, kWide) : std::string_view();
  if (!wide.empty() &&
      load<uint32_t>(wide, zip::kEnd64Size) == zip::kLocatorSignature) {
    stop = end_at - kWide;
    const Directory given = found;
    found = {load<uint64_t>(wide, 48), load<uint64_t>(wide, 40),
             load<uint64_t>(wide, 32)};
    if (load<uint32_t>(wide, 0) != zip::kEnd64Signature ||
        load<uint64_t>(wide, 4) != zip::kEnd64Size - 12 ||
        load<uint64_t>(wide, 16) != 0 ||  // disks
        load<uint64_t>(wide, 24) != found.count ||
        load<uint64_t>(wide, zip::kEnd64Size + 8) != stop ||
        !agrees(given.count, found.count, zip::kMax16) ||
        !agrees(given.size, found.size, zip::kMax32) ||
        !agrees(given.offset, found.offset, zip::kMax32))
      return std::nullopt;
  }
  if (found.offset > stop || stop - found.offset != found.size)
    return std::nullopt;
  return found;
}

// The zip64 values of size, packed size and header offset, in this order.
bool read_wide(std::string_view extra, uint64_t& size, uint64_t& packed,
               uint64_t& header) {
  if (size != zip::kMax32 && packed != zip::kMax32 && header != zip::kMax32)
    return true;
  if (extra.size() < 4 || load<uint16_t>(extra, 0) != zip::kZip64Extra ||
      load<uint16_t>(extra, 2) > extra.size() - 4)
    return false;
  extra = extra.substr(4, load<uint16_t>(extra, 2));
  for (uint64_t* field : {&size, &packed, &header}) {
    if (*field != zip::kMax32) continue;
    if (extra.size() < 8) return false;
    *field = load<uint64_t>(extra, 0);
    extra.remove_prefix(8);
  }
  return true;
}

class Reader {
 public:
  Reader(std::string_view head, std::string_view tail, uint64_t size)
      : bytes_(head, tail, size), size_(size) {}

  std::optional<ItemEnds> read() {
    const auto directory = find_directory(bytes_, size_);
    if (!directory || !read_records(*directory)) return std::nullopt;
    ItemEnds ends;
    const Record* pickle = find("data.pkl");
    const Record* data = nullptr;
    for (size_t i = 0; i < count_; ++i) {
      if (!below_root(records_[i]).starts_with("data/")) continue;
      if (data != nullptr) return std::nullopt;
      data = &records_[i];
    }
    if (pickle == nullptr || data == nullptr || find("constants.pkl") ||
        !has_version())
      return std::nullopt;
    // For all records, read or not: a damaged header is not a detail.
    for (size_t i = 0; i < count_; ++i)
      if (!data_offset(records_[i])) return std::nullopt;
    if (!read_order(ends)) return std::nullopt;
    ends.pickle = bytes_.get(*data_offset(*pickle), pickle->size);
    if (ends.pickle.empty() || !sound(*pickle, ends.pickle))
      return std::nullopt;
    ends.record = data->name;
    ends.key = below_root(*data).substr(5);
    ends.data_offset = *data_offset(*data);
    ends.data_size = data->size;
    ends.crc32 = data->crc32;
    return ends;
  }

  // After read().
  std::optional<std::vector<ItemRecord>> records() const {
    std::vector<ItemRecord> all;
    for (size_t i = 0; i < count_; ++i) {
      const Record& record = records_[i];
      all.push_back({record.name, *data_offset(record), record.size, {}});
      if (below_root(record).starts_with("data/") || record.size == 0) continue;
      const auto bytes = content(record);
      if (!bytes) return std::nullopt;
      all.back().content = *bytes;
    }
    return all;
  }

 private:
  std::string_view below_root(const Record& record) const {
    return record.name.substr(root_.size());
  }
  const Record* find(std::string_view name) const {
    for (size_t i = 0; i < count_; ++i)
      if (below_root(records_[i]) == name) return &records_[i];
    return nullptr;
  }
  static bool sound(const Record& record, std::string_view content) {
    return record.crc32 == 0 ||
           record.crc32 == crc32(0, std::as_bytes(std::span(content)));
  }
  // The content of a small record; nothing if neither end has it.
  std::optional<std::string_view> content(const Record& record) const {
    const auto at = data_offset(record);
    if (!at || record.size == 0) return std::nullopt;
    const std::string_view text = bytes_.get(*at, record.size);
    if (text.empty() || !sound(record, text)) return std::nullopt;
    return text;
  }

  bool has_version() const {
    const Record* record = find("version");
    if (record == nullptr) return false;
    const auto text = content(*record);
    return text && (*text == "3\n" || *text == "3");
  }
  bool read_order(ItemEnds& ends) const {
    const Record* record = find("byteorder");
    if (record == nullptr) return true;
    const auto order = content(*record);
    ends.big_endian = order && *order == "big";
    return order && (*order == "little" || *order == "big");
  }

  bool read_records(const Directory& directory) {
    if (directory.count == 0 || directory.count > kMaxRecords) return false;
    std::string_view rest = bytes_.get(directory.offset, directory.size);
    directory_ = directory.offset;
    for (; count_ < directory.count; ++count_)
      if (!read_record(rest, records_[count_])) return false;
    root_ = records_[0].name.substr(0, records_[0].name.find('/') + 1);
    for (size_t i = 0; i < count_; ++i) {
      if (root_.empty() || !records_[i].name.starts_with(root_)) return false;
      for (size_t j = 0; j < i; ++j)
        if (records_[j].name == records_[i].name) return false;
    }
    return rest.empty();
  }

  static bool read_record(std::string_view& rest, Record& record) {
    constexpr uint16_t kKnown =
        zip::kFlagDescriptor | zip::kFlagUtf8;  // no encryption, no patches
    if (rest.size() < zip::kDirectoryEntrySize ||
        load<uint32_t>(rest, 0) != zip::kDirectorySignature ||
        (load<uint16_t>(rest, 8) & ~kKnown) != 0 ||
        load<uint16_t>(rest, 34) != 0 ||           // disk
        (load<uint32_t>(rest, 38) & 0x10) != 0 ||  // marked as a directory
        load<uint16_t>(rest, 10) != 0)             // method: stored
      return false;
    const uint64_t name = load<uint16_t>(rest, 28);
    const uint64_t extra = load<uint16_t>(rest, 30);
    const uint64_t length =
        zip::kDirectoryEntrySize + name + extra + load<uint16_t>(rest, 32);
    if (length > rest.size()) return false;
    uint64_t packed = load<uint32_t>(rest, 20);
    record.name = rest.substr(zip::kDirectoryEntrySize, name);
    record.size = load<uint32_t>(rest, 24);
    record.header = load<uint32_t>(rest, 42);
    record.crc32 = load<uint32_t>(rest, 16);
    if (!read_wide(rest.substr(zip::kDirectoryEntrySize + name, extra),
                   record.size, packed, record.header) ||
        packed != record.size)
      return false;
    rest.remove_prefix(length);
    return record.name.find("..") == record.name.npos &&
           record.name.find('\0') == record.name.npos;
  }

  // Where the content of a record begins, by its local header. It must end
  // before the next header.
  std::optional<uint64_t> data_offset(const Record& record) const {
    uint64_t next = directory_;
    for (size_t i = 0; i < count_; ++i)
      if (records_[i].header > record.header && records_[i].header < next)
        next = records_[i].header;
    const uint64_t fixed = zip::kLocalSize + record.name.size();
    const std::string_view header = bytes_.get(record.header, fixed);
    if (header.empty() || load<uint32_t>(header, 0) != zip::kLocalSignature ||
        load<uint16_t>(header, 8) != 0 ||
        load<uint16_t>(header, 26) != record.name.size() ||
        header.substr(zip::kLocalSize) != record.name)
      return std::nullopt;
    const uint64_t at = record.header + fixed + load<uint16_t>(header, 28);
    if (at > next || record.size > next - at) return std::nullopt;
    return at;
  }

  const Bytes bytes_;
  const uint64_t size_;
  uint64_t directory_ = 0;
  std::string_view root_;
  std::array<Record, kMaxRecords> records_;
  size_t count_ = 0;
};

}  // namespace

std::optional<ItemEnds> read_ends(std::string_view head, std::string_view tail,
                                  uint64_t size) {
  return Reader(head, tail, size).read();
}

std::optional<std::vector<ItemRecord>> read_item_records(std::string_view head,
                                                         std::string_view tail,
                                                         uint64_t size) {
  Reader reader(head, tail, size);
  if (!reader.read()) return std::nullopt;
  return reader.records();
}

}  // namespace ckpt::torch
