// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/parts.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

// Rows farther apart than this are handled one by one.
constexpr uint64_t kFarRows = uint64_t{1} << 20;
// Smaller holes cost more calls than they free blocks.
constexpr uint64_t kLeastHole = uint64_t{64} << 10;
// A manifest identifies a file by both ends.
constexpr uint64_t kEnds = 4096;

uint64_t target_bytes(const PlannedTensor& tensor, uint64_t bytes) {
  if (!tensor.casts()) return bytes;
  return bytes / std::max<uint64_t>(1, element_size(tensor.source_dtype)) *
         std::max<uint64_t>(1, element_size(tensor.target_dtype));
}

std::vector<FileRange> kept_ranges(const TargetFile& file) {
  std::vector<FileRange> all{
      {0, std::min(file.size, kEnds)},
      {file.size - std::min(file.size, kEnds), file.size}};
  for (const Literal& literal : file.literals)
    all.emplace_back(literal.offset, literal.offset + literal.bytes.size());
  for (const SharedLiteral& literal : file.shared)
    all.emplace_back(literal.offset, literal.offset + literal.bytes->size());
  for (const CarriedRange& range : file.carried)
    all.emplace_back(range.offset, range.offset + range.size);
  std::ranges::sort(all);
  std::vector<FileRange> kept;
  for (const FileRange& range : all)
    if (!kept.empty() && range.first < kept.back().second + kLeastHole)
      kept.back().second = std::max(kept.back().second, range.second);
    else
      kept.push_back(range);
  return kept;
}

}  // namespace

TargetParts::TargetParts(const Plan& plan, const Target& target,
                         std::vector<uint64_t> sizes)
    : plan_(plan), target_(target), items_(cut_items(plan, kItemBytes)) {
  for (size_t f = 0; f < target.files.size(); ++f)
    add_file(target.files[f], f < sizes.size() ? sizes[f] : 0);
  for (const Item& item : items_)
    ranges_of(item, [&](uint32_t file, uint64_t begin, uint64_t end) {
      FileParts& one = files_[file];
      for (uint64_t p = begin / one.size; p <= (end - 1) / one.size; ++p)
        ++one.parts[p];
      add_crcs(file, begin, end);
    });
}

void TargetParts::add_file(const TargetFile& file, uint64_t size) {
  FileParts& made = files_.emplace_back();
  if (size == 0 || file.size == 0 || !file.copy_of.empty()) return;
  made.size = size;
  made.count = (file.size + size - 1) / size;
  made.parts = std::make_unique<std::atomic<uint32_t>[]>(made.count);
  made.crcs = std::make_unique<std::atomic<uint32_t>[]>(file.crcs.size());
  made.kept = kept_ranges(file);
  // One hold for begin(), and one for each byte range of a checksum.
  for (uint64_t p = 0; p < made.count; ++p) made.parts[p] = 1;
  for (const LateCrc& crc : file.crcs)
    for (const uint64_t at : crc.at)
      for (uint64_t p = at / size; p <= (at + 3) / size; ++p) ++made.parts[p];
  for (size_t i = 0; i < file.crcs.size(); ++i) made.crcs[i] = 1;
}

void TargetParts::add_crcs(uint32_t file, uint64_t begin, uint64_t end) {
  const std::vector<LateCrc>& crcs = target_.files[file].crcs.get();
  for (auto crc = std::ranges::upper_bound(crcs, begin, {}, &LateCrc::end);
       crc != crcs.end() && crc->begin < end; ++crc)
    ++files_[file].crcs[static_cast<size_t>(crc - crcs.begin())];
}

// Only for files that somebody asks for.
void TargetParts::ranges_of(const Item& item, const See& see) const {
  all_ranges_of(item, [&](uint32_t file, uint64_t begin, uint64_t end) {
    if (files_[file].size) see(file, begin, end);
  });
}

// The ranges contain at least what the item writes, and are the same each time.
void TargetParts::all_ranges_of(const Item& item, const See& see) const {
  const auto add = [&](uint32_t file, uint64_t begin, uint64_t end) {
    if (file < files_.size() && begin < end) see(file, begin, end);
  };
  if (item.gather) {
    const Gather& gather = plan_.gathers[item.index];
    if (gather.target_file == kNone) return;
    uint64_t end = gather.target_offset +
                   element_size(plan_.tensors[gather.tensor].target_dtype);
    for (size_t d = 0; d < gather.shape.size(); ++d) {
      if (gather.shape[d] == 0) return;
      end += (gather.shape[d] - 1) * gather.target_strides[d];
    }
    return add(gather.target_file, gather.target_offset, end);
  }
  const Job& job = plan_.jobs[item.index];
  if (job.rows == 1) return ranges_of_columns(item, add);
  for (uint32_t t = 0; t < job.targets; ++t) {
    const Lane& lane = plan_.lanes[job.first_target + t];
    const uint64_t first = lane.offset + item.begin * lane.row_stride;
    const uint64_t rows = item.end - item.begin;
    if (lane.row_stride < kFarRows) {
      add(lane.file, first, first + (rows - 1) * lane.row_stride + lane.width);
      continue;
    }
    for (uint64_t row = 0; row < rows; ++row)
      add(lane.file, first + row * lane.row_stride,
          first + row * lane.row_stride + lane.width);
  }
}

void TargetParts::ranges_of_columns(const Item& item, const See& see) const {
  const Job& job = plan_.jobs[item.index];
  for (uint32_t m = 0; m < job.moves; ++m) {
    const Move& move = plan_.moves[job.first_move + m];
    if (move.target == kNone) continue;
    const uint64_t low = std::max(item.begin, move.source_column);
    const uint64_t high = std::min(item.end, move.source_column + move.bytes);
    if (low >= high) continue;
    const PlannedTensor& tensor = plan_.tensors[job.tensor];
    const Lane& lane = plan_.lanes[job.first_target + move.target];
    const uint64_t begin = lane.offset + move.target_column +
                           target_bytes(tensor, low - move.source_column);
    see(lane.file, begin, begin + target_bytes(tensor, high - low));
  }
}

void TargetParts::for_each_part(
    uint32_t item,
    const std::function<void(uint32_t file, uint64_t part)>& see) const {
  if (item >= items_.size()) return;
  ranges_of(items_[item], [&](uint32_t file, uint64_t begin, uint64_t end) {
    const uint64_t size = files_[file].size;
    for (uint64_t p = begin / size; p <= (end - 1) / size; ++p) see(file, p);
  });
}

bool TargetParts::only_to_parts(uint32_t item) const {
  bool only = item < items_.size();
  if (only)
    all_ranges_of(items_[item], [&](uint32_t file, uint64_t, uint64_t) {
      only &= files_[file].size != 0;
    });
  return only;
}

// Includes what checksums wait for: the parts with those stay.
uint64_t TargetParts::most_open() const {
  struct Left {
    std::vector<uint32_t> parts, crcs;
  };
  std::vector<Left> left(files_.size());
  std::vector<std::vector<bool>> begun(files_.size());
  uint64_t open = 0, most = 0;
  for (size_t f = 0; f < files_.size(); ++f) {
    for (uint64_t p = 0; p < files_[f].count; ++p)
      left[f].parts.push_back(files_[f].parts[p] - 1);
    if (files_[f].size)
      for (size_t i = 0; i < target_.files[f].crcs.size(); ++i)
        left[f].crcs.push_back(files_[f].crcs[i] - 1);
    begun[f].resize(files_[f].count);
  }
  const auto lower = [&](uint32_t f, uint64_t p) {
    if (--left[f].parts[p] == 0 && begun[f][p]) open -= files_[f].size;
  };
  for (const Item& item : items_)
    ranges_of(item, [&](uint32_t f, uint64_t begin, uint64_t end) {
      const uint64_t size = files_[f].size;
      for (uint64_t p = begin / size; p <= (end - 1) / size; ++p) {
        if (!begun[f][p]) open += size;
        begun[f][p] = true;
        most = std::max(most, open);
        lower(f, p);
      }
      const std::vector<LateCrc>& crcs = target_.files[f].crcs.get();
      for (auto crc = std::ranges::upper_bound(crcs, begin, {}, &LateCrc::end);
           crc != crcs.end() && crc->begin < end; ++crc) {
        if (--left[f].crcs[static_cast<size_t>(crc - crcs.begin())]) continue;
        for (const uint64_t at : crc->at)
          for (uint64_t p = at / size; p <= (at + 3) / size; ++p) lower(f, p);
      }
    });
  return most;
}

void TargetParts::begin(Output& output, Whole whole) {
  output_ = &output;
  whole_ = std::move(whole);
  for (uint32_t f = 0; f < files_.size(); ++f) {
    if (files_[f].size == 0) continue;
    for (uint32_t i = 0; i < target_.files[f].crcs.size(); ++i) crc_known(f, i);
    for (uint64_t p = 0; p < files_[f].count; ++p) release(f, p);
  }
}

void TargetParts::crc_known(uint32_t file, uint32_t index) {
  if (--files_[file].crcs[index]) return;
  output_->write_crc(file, index);
  const uint64_t size = files_[file].size;
  for (const uint64_t at : target_.files[file].crcs.get()[index].at)
    for (uint64_t p = at / size; p <= (at + 3) / size; ++p) release(file, p);
}

void TargetParts::release(uint32_t file, uint64_t part) {
  if (--files_[file].parts[part] == 0) whole_(file, part);
}

void TargetParts::finished(uint32_t item) {
  if (item >= items_.size()) return;
  ranges_of(items_[item], [&](uint32_t file, uint64_t begin, uint64_t end) {
    const std::vector<LateCrc>& crcs = target_.files[file].crcs.get();
    for (auto crc = std::ranges::upper_bound(crcs, begin, {}, &LateCrc::end);
         crc != crcs.end() && crc->begin < end; ++crc)
      crc_known(file, static_cast<uint32_t>(crc - crcs.begin()));
  });
  for_each_part(item,
                [&](uint32_t file, uint64_t part) { release(file, part); });
}

std::vector<FileRange> TargetParts::spare(uint32_t file, uint64_t part) const {
  const FileParts& one = files_[file];
  uint64_t at = part * one.size;
  const uint64_t end = std::min(at + one.size, target_.files[file].size);
  std::vector<FileRange> spare;
  auto kept = std::ranges::upper_bound(one.kept, at, {}, &FileRange::second);
  for (; kept != one.kept.end() && kept->first < end; ++kept) {
    if (at < kept->first) spare.emplace_back(at, kept->first);
    at = kept->second;
  }
  if (at < end) spare.emplace_back(at, end);
  return spare;
}

void order_by_target(Plan& plan) {
  std::ranges::stable_sort(plan.jobs, [&](const Job& a, const Job& b) {
    const auto place = [&](const Job& job) {
      if (job.targets == 0) return std::tuple(kNone, uint64_t{0});
      const Lane& lane = plan.lanes[job.first_target];
      return std::tuple(lane.file, lane.offset);
    };
    return place(a) < place(b);
  });
  std::ranges::stable_sort(plan.gathers, {}, [](const Gather& gather) {
    return std::tuple(gather.target_file, gather.target_offset);
  });
}

// Uses a size that does not depend on settings: a journal counts items in the
// resulting order.
void order_for_sending(Plan& plan, const Target& target) {
  constexpr uint64_t kPart = uint64_t{16} << 20;
  constexpr uint64_t kMuch = 16 * kPart;
  const auto most_open = [&] {
    return TargetParts(plan, target,
                       std::vector<uint64_t>(target.files.size(), kPart))
        .most_open();
  };
  const uint64_t before = most_open();
  if (before <= kMuch) return;
  std::vector<Job> jobs = plan.jobs;
  std::vector<Gather> gathers = plan.gathers;
  order_by_target(plan);
  if (most_open() < before) return;
  plan.jobs = std::move(jobs);
  plan.gathers = std::move(gathers);
}

}  // namespace ckpt::reshard
