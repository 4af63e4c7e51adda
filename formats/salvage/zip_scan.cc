// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/zip_scan.h"

#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "lib/zip/headers.h"

namespace ckpt::salvage {
namespace {

using zip::load;

constexpr uint64_t kScanned = uint64_t{1} << 20;  // at a time
// Per signature; torch's largest files have some 10^5 records.
constexpr size_t kMostSignatures = 4'000'000;
constexpr size_t kMostName = 4096;
// Search steps for descriptors, over all records.
constexpr uint64_t kMostSteps = 200'000'000;

// Where each signature occurs.
struct Signatures {
  std::vector<uint64_t> local, descriptor, directory;
};

Signatures find_signatures(const io::Handle& file) {
  Signatures found;
  for (uint64_t at = 0; at + 4 <= file.size(); at += kScanned) {
    const std::string bytes =
        file.read_string(at, std::min(kScanned + 3, file.size() - at));
    for (size_t i = bytes.find("PK"); i != bytes.npos && i < kScanned;
         i = bytes.find("PK", i + 1)) {
      if (i + 4 > bytes.size()) break;
      const auto signature = load<uint32_t>(bytes, i);
      if (signature == zip::kLocalSignature) found.local.push_back(at + i);
      if (signature == zip::kDescriptorSignature)
        found.descriptor.push_back(at + i);
      if (signature == zip::kDirectorySignature)
        found.directory.push_back(at + i);
    }
    if (found.local.size() + found.descriptor.size() + found.directory.size() >
        kMostSignatures)
      throw input_error({file.path(), {}},
                        "more than {} signatures of zip records",
                        kMostSignatures);
  }
  return found;
}

bool is_plain(std::string_view name) {
  return !name.empty() && name.find('/') != name.npos &&
         std::ranges::all_of(name, [](char c) {
           return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F;
         });
}

// The values of a zip64 field, if there is one.
void read_zip64(std::string_view extra, std::vector<uint64_t*> fields) {
  while (extra.size() >= 4) {
    const auto id = load<uint16_t>(extra, 0);
    const size_t length =
        std::min<size_t>(load<uint16_t>(extra, 2), extra.size() - 4);
    std::string_view values = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != zip::kZip64Extra) continue;
    for (uint64_t* field : fields) {
      if (*field != zip::kMax32 || values.size() < 8) continue;
      *field = load<uint64_t>(values, 0);
      values.remove_prefix(8);
    }
  }
}

struct Local {
  ScannedRecord record;
  uint64_t header = 0;
  bool sized = false;  // sizes are in the header
  uint32_t crc = 0;
};

std::optional<Local> read_local(const io::Handle& file, uint64_t at) {
  if (file.size() - at < zip::kLocalSize) return std::nullopt;
  const std::string head = file.read_string(at, zip::kLocalSize);
  const auto name_size = load<uint16_t>(head, 26);
  const auto extra_size = load<uint16_t>(head, 28);
  if (name_size > kMostName ||
      file.size() - at - zip::kLocalSize < name_size + uint64_t{extra_size})
    return std::nullopt;
  const std::string rest =
      file.read_string(at + zip::kLocalSize, name_size + extra_size);
  Local local;
  local.header = at;
  local.record.name = rest.substr(0, name_size);
  if (!is_plain(local.record.name)) return std::nullopt;
  local.record.method = load<uint16_t>(head, 8);
  if (local.record.method != 0 && local.record.method != 8) return std::nullopt;
  local.record.data_offset = at + zip::kLocalSize + rest.size();
  local.crc = load<uint32_t>(head, 14);
  local.record.packed_size = load<uint32_t>(head, 18);
  local.record.size = load<uint32_t>(head, 22);
  read_zip64(std::string_view(rest).substr(name_size),
             {&local.record.size, &local.record.packed_size});
  local.sized = (load<uint16_t>(head, 6) & zip::kFlagDescriptor) == 0;
  return local;
}

// What the directory says, as far as it survives, by local header offset.
struct Entry {
  std::string name;
  uint32_t crc = 0;
  uint64_t packed_size = 0;
  uint64_t size = 0;
  uint16_t method = 0;
};
std::map<uint64_t, Entry> read_entries(const io::Handle& file,
                                       const std::vector<uint64_t>& places) {
  std::map<uint64_t, Entry> entries;
  for (const uint64_t at : places) {
    if (file.size() - at < zip::kDirectoryEntrySize) continue;
    const std::string head = file.read_string(at, zip::kDirectoryEntrySize);
    const auto name_size = load<uint16_t>(head, 28);
    const auto extra_size = load<uint16_t>(head, 30);
    if (name_size > kMostName || file.size() - at - zip::kDirectoryEntrySize <
                                     name_size + uint64_t{extra_size})
      continue;
    const std::string rest =
        file.read_string(at + zip::kDirectoryEntrySize, name_size + extra_size);
    Entry entry{.name = rest.substr(0, name_size),
                .crc = load<uint32_t>(head, 16),
                .packed_size = load<uint32_t>(head, 20),
                .size = load<uint32_t>(head, 24),
                .method = load<uint16_t>(head, 10)};
    uint64_t header = load<uint32_t>(head, 42);
    read_zip64(std::string_view(rest).substr(name_size),
               {&entry.size, &entry.packed_size, &header});
    if (is_plain(entry.name) && header < at) entries.emplace(header, entry);
  }
  return entries;
}

class Scanner {
 public:
  explicit Scanner(const io::Handle& file)
      : file_(file),
        signatures_(find_signatures(file)),
        entries_(read_entries(file, signatures_.directory)) {}

  std::vector<ScannedRecord> run() {
    uint64_t next = 0;  // anything before it is a record's data
    for (const uint64_t at : signatures_.local) {
      if (at < next) continue;
      auto local = read_local(file_, at);
      if (!local) continue;
      next = finish(*local);
      records_.push_back(std::move(local->record));
      entries_.erase(at);
    }
    add_headless();
    std::ranges::sort(records_, {}, &ScannedRecord::data_offset);
    return std::move(records_);
  }

 private:
  // Sets the record's size and checksums; returns where it ends.
  uint64_t finish(Local& local) {
    ScannedRecord& record = local.record;
    const auto entry = entries_.find(local.header);
    const bool listed =
        entry != entries_.end() && entry->second.name == record.name;
    if (listed) {
      record.size = entry->second.size;
      record.packed_size = entry->second.packed_size;
      record.method = entry->second.method;
      record.crcs.push_back(entry->second.crc);
    }
    if (local.sized && (record.size == 0 || local.crc != 0))
      record.crcs.push_back(local.crc);
    const auto described = descriptor_of(local);
    if (described) {
      if (!listed) record.size = record.packed_size = described->first;
      if (record.packed_size == described->first)
        record.crcs.push_back(described->second);
    }
    const uint64_t left = file_.size() - record.data_offset;
    if (!listed && !local.sized && !described) {
      record.ends = false;
      record.size = record.packed_size = left;
      return next_local(record.data_offset);
    }
    record.ends = record.packed_size <= left;
    return record.ends ? record.data_offset + record.packed_size
                       : next_local(record.data_offset);
  }

  // A record of unknown size ends no later than where the next one begins.
  uint64_t next_local(uint64_t from) const {
    for (auto at = std::ranges::lower_bound(signatures_.local, from);
         at != signatures_.local.end(); ++at)
      if (read_local(file_, *at)) return *at;
    return file_.size();
  }

  // Packed size and CRC.
  std::optional<std::pair<uint64_t, uint32_t>> descriptor_of(
      const Local& local) {
    if (local.sized) return std::nullopt;
    const uint64_t data = local.record.data_offset;
    for (auto at = std::ranges::lower_bound(signatures_.descriptor, data);
         at != signatures_.descriptor.end() && steps_ < kMostSteps;
         ++at, ++steps_) {
      if (file_.size() - *at < 16) break;
      const std::string bytes =
          file_.read_string(*at, std::min<uint64_t>(24, file_.size() - *at));
      const auto crc = load<uint32_t>(bytes, 4);
      if (load<uint32_t>(bytes, 8) == *at - data ||
          (bytes.size() == 24 && load<uint64_t>(bytes, 8) == *at - data))
        return std::pair(*at - data, crc);
    }
    return std::nullopt;
  }

  // Adds records that only the directory knows, as their local header is
  // damaged. torch aligns data to 64 bytes; the checksum will show whether it
  // did.
  void add_headless() {
    for (const auto& [header, entry] : entries_) {
      const std::string& name = entry.name;
      const bool known = std::ranges::any_of(
          records_, [&name](const ScannedRecord& r) { return r.name == name; });
      if (known || entry.crc == 0) continue;
      const uint64_t least = header + zip::kLocalSize + entry.name.size() + 4;
      const uint64_t data = (least + 63) / 64 * 64;
      if (data > file_.size() || entry.packed_size > file_.size() - data)
        continue;
      records_.push_back({.name = entry.name,
                          .data_offset = data,
                          .packed_size = entry.packed_size,
                          .size = entry.size,
                          .method = entry.method,
                          .crcs = {entry.crc}});
    }
  }

  const io::Handle& file_;
  const Signatures signatures_;
  std::map<uint64_t, Entry> entries_;
  std::vector<ScannedRecord> records_;
  uint64_t steps_ = 0;
};

}  // namespace

std::vector<ScannedRecord> scan_records(const io::Handle& file) {
  return Scanner(file).run();
}

}  // namespace ckpt::salvage
