// SPDX-License-Identifier: Apache-2.0
#include "reshard/source_crcs.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
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
  place_.resize(records_.size());
  for (uint32_t i = 0; i < records_.size(); ++i) place_[records_[i].index] = i;
}

std::vector<SourceCrcs::Seen> SourceCrcs::seen() const {
  std::vector<Seen> seen;
  for (size_t i = 0; i < records_.size(); ++i)
    if (sums_[i].bytes != 0)
      seen.push_back({records_[i].index, sums_[i].crc, sums_[i].bytes});
  return seen;
}

void SourceCrcs::add(const Seen& part) {
  if (part.index >= place_.size())
    throw bug_error({}, "record {} of {}", part.index, place_.size());
  Sum& sum = sums_[place_[part.index]];
  sum.crc ^= part.crc;
  sum.bytes += part.bytes;
}

std::optional<uint32_t> SourceCrcs::add(uint32_t file, uint64_t offset,
                                        std::span<const std::byte> bytes) {
  std::optional<uint32_t> all;
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
    const uint32_t crc = crc32(0, bytes.subspan(from - offset, to - from));
    sum.crc ^= crc32_contribution(crc, record->end - to);
    sum.bytes += to - from;
    if (to - from == bytes.size()) all = crc;
  }
  return all;
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

void SourceCrcs::plan_bytes(uint32_t file, uint64_t offset, uint64_t bytes,
                            std::vector<uint64_t>& planned) const {
  const auto record = std::ranges::upper_bound(
      records_, std::tuple(file, offset), {},
      [](const Record& r) { return std::tuple(r.file, r.end); });
  if (record == records_.end() || record->file != file ||
      record->begin > offset)
    return;
  planned[static_cast<size_t>(record - records_.begin())] += bytes;
}

std::vector<uint32_t> SourceCrcs::unsure(const Plan& plan) const {
  std::vector<uint64_t> planned(records_.size());
  for (const Job& job : plan.jobs)
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan.lanes[job.first_source + i];
      plan_bytes(lane.file, lane.offset, job.rows * lane.width, planned);
    }
  for (const Gather& gather : plan.gathers)
    plan_bytes(gather.source_file, gather.source_offset,
               element_count(gather.shape).value_or(0) *
                   element_size(plan.tensors[gather.tensor].source_dtype),
               planned);
  std::vector<uint32_t> unsure;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const uint64_t size = record.end - record.begin;
    if (sums_[i].bytes != size && planned[i] != 0 && planned[i] >= size / 2)
      unsure.push_back(record.index);
  }
  return unsure;
}

}  // namespace ckpt::reshard
