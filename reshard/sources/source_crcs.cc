// SPDX-License-Identifier: Apache-2.0
#include "reshard/sources/source_crcs.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"

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

// What the plan takes; of rows in strides, what lies between them too.
std::vector<SourceCrcs::Span> SourceCrcs::spans_of(const Plan& plan) {
  std::vector<Span> spans;
  for (const Job& job : plan.jobs)
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan.lanes[job.first_source + i];
      const uint64_t rows = job.rows == 0 ? 0 : job.rows - 1;
      spans.push_back({lane.file, lane.offset,
                       lane.offset + rows * lane.row_stride + lane.width});
    }
  for (const Gather& gather : plan.gathers) {
    uint64_t end = gather.source_offset +
                   element_size(plan.tensors[gather.tensor].source_dtype);
    for (size_t d = 0; d < gather.shape.size(); ++d)
      if (gather.shape[d] > 1)
        end += (gather.shape[d] - 1) * gather.source_strides[d];
    spans.push_back({gather.source_file, gather.source_offset, end});
  }
  return spans;
}

std::vector<uint32_t> SourceCrcs::wrong(const Plan& plan) const {
  std::vector<uint32_t> wrong;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const bool complete = sums_[i].bytes == record.end - record.begin;
    if (complete && sums_[i].crc != record.crc32) wrong.push_back(record.index);
  }
  if (wrong.empty()) return wrong;
  // A half that passed by twice has as many bytes, and its sum means nothing:
  // a tied embedding of which the other half is padding.
  std::vector<Span> spans = spans_of(plan);
  std::ranges::sort(spans, {}, [](const Span& span) {
    return std::tuple(span.file, span.begin);
  });
  std::erase_if(wrong, [&](uint32_t index) {
    const Record& record = records_[place_[index]];
    uint64_t reached = record.begin;
    for (const Span& span : spans) {
      if (span.file != record.file || span.end <= record.begin ||
          span.begin >= record.end)
        continue;
      if (span.begin < reached) return true;
      reached = span.end;
    }
    return false;
  });
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

std::vector<uint64_t> SourceCrcs::planned_bytes(const Plan& plan) const {
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
  return planned;
}

std::vector<uint32_t> SourceCrcs::left_out(const Plan& plan) const {
  const std::vector<uint64_t> planned = planned_bytes(plan);
  std::vector<uint32_t> left;
  for (size_t i = 0; i < records_.size(); ++i)
    if (!is_taken(planned[i], records_[i].end - records_[i].begin))
      left.push_back(records_[i].index);
  return left;
}

std::vector<uint32_t> SourceCrcs::unsure(const Plan& plan) const {
  const std::vector<uint64_t> planned = planned_bytes(plan);
  std::vector<bool> is_wrong(records_.size());
  for (const uint32_t index : wrong(plan)) is_wrong[place_[index]] = true;
  std::vector<uint32_t> unsure;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const uint64_t size = record.end - record.begin;
    // Of one that is complete and has another sum, wrong() says whether it was
    // read once.
    const bool settled =
        sums_[i].bytes == size && (sums_[i].crc == record.crc32 || is_wrong[i]);
    if (!settled && is_taken(planned[i], size)) unsure.push_back(record.index);
  }
  return unsure;
}

}  // namespace ckpt::reshard
