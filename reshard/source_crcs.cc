#include "reshard/source_crcs.h"

#include <algorithm>
#include <tuple>

#include "lib/crc32.h"

namespace ckpt::reshard {

SourceCrcs::SourceCrcs(const Catalog& catalog)
    : sums_(std::make_unique<Sum[]>(catalog.crcs.size())) {
  records_.reserve(catalog.crcs.size());
  for (uint32_t i = 0; i < catalog.crcs.size(); ++i) {
    const StoredCrc& stored = catalog.crcs[i];
    records_.push_back(
        {stored.file, stored.begin, stored.end, i, stored.crc32});
  }
  std::ranges::sort(records_, {}, [](const Record& record) {
    return std::tuple(record.file, record.begin);
  });
}

void SourceCrcs::add(uint32_t file, uint64_t offset,
                     std::span<const std::byte> bytes) {
  // The first record that ends after the bytes begin.
  auto record = std::ranges::upper_bound(
      records_, std::tuple(file, offset), {},
      [](const Record& r) { return std::tuple(r.file, r.end); });
  const uint64_t end = offset + bytes.size();
  for (;
       record != records_.end() && record->file == file && record->begin < end;
       ++record) {
    const uint64_t from = std::max(offset, record->begin);
    const uint64_t to = std::min(end, record->end);
    Sum& sum = sums_[static_cast<size_t>(record - records_.begin())];
    sum.crc ^= crc32_contribution(
        crc32(0, bytes.subspan(from - offset, to - from)), record->end - to);
    sum.bytes += to - from;
  }
}

std::vector<uint32_t> SourceCrcs::wrong() const {
  std::vector<uint32_t> wrong;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const bool complete = sums_[i].bytes == record.end - record.begin;
    if (complete && sums_[i].crc != record.crc32) wrong.push_back(record.index);
  }
  return wrong;
}

}  // namespace ckpt::reshard
