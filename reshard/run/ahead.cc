// SPDX-License-Identifier: Apache-2.0
// Announces the reads of an item before it is run, so that the disk works on
// them while the item before it is moved.
#include <algorithm>

#include "lib/io/remote.h"
#include "reshard/plan/tiles.h"
#include "reshard/run/mover.h"

namespace ckpt::reshard {

void Mover::read_around(const DirectReads& reads) {
  direct_.emplace(files_, direct_files_, reads, block_);
  reader_.read_around(*direct_);
}

size_t Mover::look_ahead(const Item& item, std::span<const Item> next,
                         uint64_t most) {
  wanted_bytes_ = 0;
  const bool is_known = asked_ == item;
  was_cached_ = asked_was_cached_;
  // A part of it may have waited for what follows.
  if (!is_known || is_far(item)) ask_for(item);
  if (!is_known) was_cached_ = asked_was_cached_;
  ask_wanted(false);
  if (next.empty()) return 0;
  ask_for(next.front());
  const bool was_cached = asked_was_cached_;
  bool more = false;
  size_t asked = 1;
  for (const Item& later : next.subspan(1)) {
    more = wanted_bytes_ >= most;
    if (more) break;
    ++asked;
    if (!is_far(later)) continue;
    for (Wanted& earlier : wanted_) earlier.last = false;
    ask_for(later);
  }
  ask_wanted(more);
  asked_ = next.front();
  asked_was_cached_ = was_cached;
  return asked;
}

bool Mover::is_far(const Item& item) const {
  if (item.gather) return false;
  const Lane& lane = plan_.lanes[plan_.jobs[item.index].first_source];
  return io::is_url(files_[lane.file].path);
}

// One call for each file, so that what lies close together is one request.
void Mover::ask_wanted(bool more) {
  // Packed pieces of one file are files of their own.
  const auto path = [&](const Wanted& one) -> const std::string& {
    return files_[one.file].path;
  };
  const auto together = [&](const Wanted& a, const Wanted& b) {
    return a.file == b.file || path(a) == path(b);
  };
  std::ranges::stable_sort(wanted_, [&](const Wanted& a, const Wanted& b) {
    return together(a, b) ? a.range.begin < b.range.begin : path(a) < path(b);
  });
  std::vector<io::Range> ranges;
  for (size_t i = 0; i < wanted_.size();) {
    ranges.clear();
    bool goes_on = false;
    const Wanted& first = wanted_[i];
    for (; i < wanted_.size() && together(wanted_[i], first); ++i) {
      ranges.push_back(wanted_[i].range);
      goes_on |= wanted_[i].last;
    }
    reader_.ask_for(first.file, ranges, {.more = more && goes_on});
  }
  wanted_.clear();
}

namespace {

constexpr uint32_t kMostLanes = 32;  // of a job that are asked for

struct Bytes {
  uint64_t offset = 0;
  uint64_t count = 0;
};

// The bytes that an item takes from a lane not read row by row.
Bytes bytes_of(const Job& job, const Item& item, const Lane& lane) {
  if (job.rows > 1)
    return {lane.offset + item.begin * lane.row_stride,
            (item.end - item.begin - 1) * lane.row_stride + lane.width};
  const uint64_t end = std::min(item.end, lane.width);
  return {lane.offset + item.begin, end - std::min(end, item.begin)};
}

}  // namespace

// Asks for nothing that will probably be shared rather than read.
void Mover::ask_for(const Item& item) {
  asked_ = item;
  asked_was_cached_ = false;
  if (item.gather) return;
  const Job& job = plan_.jobs[item.index];
  const Lane& first = plan_.lanes[job.first_source];
  const Bytes bytes = bytes_of(job, item, first);
  asked_was_cached_ = reader_.is_cached(first.file, bytes.offset, bytes.count);
  if (job.rows == 1 && output_.may_clone() &&
      is_blind(job, plan_.moves[job.first_move]))
    return;
  if (!reads_around(job))
    ask_cache(job, item);
  else if (job.rows == 1)
    want_columns(job, 0, item.begin, item.end);
  else
    want_rows(job, item);
}

// True if the item's reads, judged by its first ones, bypass the page cache.
bool Mover::reads_around(const Job& job) const {
  if (!direct_ || (direct_->wanted_only() && asked_was_cached_)) return false;
  const Lane& lane = plan_.lanes[job.first_source];
  if (io::is_url(files_[lane.file].path)) return false;
  const uint64_t rows = job.rows == 1 ? 0 : row_step(job);
  if (rows) return direct_->takes(lane.file, rows * lane.row_stride);
  const Move& first = plan_.moves[job.first_move];
  return direct_->takes(lane.file, std::min(column_step(job), first.bytes));
}

// Lanes read row by row are left to their own reads.
void Mover::ask_cache(const Job& job, const Item& item) {
  for (uint32_t i = 0; i < std::min(job.sources, kMostLanes); ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    if (job.rows > 1 && !is_dense(lane)) continue;
    const Bytes bytes = bytes_of(job, item, lane);
    const io::Range range =
        reader_.stored(lane.file, bytes.offset, bytes.count);
    wanted_bytes_ += range.end - range.begin;
    if (!reader_.is_cached(lane.file, bytes.offset, bytes.count))
      wanted_.push_back({lane.file, range, true});
  }
}

bool Mover::is_there(const Item& item) {
  if (item.gather) return true;
  const Job& job = plan_.jobs[item.index];
  for (uint32_t i = 0; i < std::min(job.sources, kMostLanes); ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    if (job.rows > 1 && !is_dense(lane)) continue;
    const Bytes bytes = bytes_of(job, item, lane);
    if (!reader_.is_there(lane.file, bytes.offset, bytes.count)) return false;
  }
  return true;
}

bool Mover::has_arrived(const Item& item) {
  if (item.gather) return false;
  const Job& job = plan_.jobs[item.index];
  if (job.sources > kMostLanes) return false;
  for (uint32_t i = 0; i < job.sources; ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    const Bytes bytes = bytes_of(job, item, lane);
    if (!io::is_url(files_[lane.file].path) ||
        !reader_.is_there(lane.file, bytes.offset, bytes.count))
      return false;
  }
  return true;
}

// In the order of run_rows() and move_block().
void Mover::want_rows(const Job& job, const Item& item) {
  const uint64_t step = row_step(job);
  if (step == 0) {
    for (uint64_t row = item.begin; row < item.end; ++row)
      want_columns(job, row, 0, UINT64_MAX);
    return;
  }
  for (uint64_t row = item.begin; row < item.end; row += step)
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan_.lanes[job.first_source + i];
      const uint64_t rows = std::min(step, item.end - row);
      if (is_dense(lane))
        direct_->want(lane.file, lane.offset + row * lane.row_stride,
                      (rows - 1) * lane.row_stride + lane.width);
    }
}

// In the order of run_columns() and copy_columns().
void Mover::want_columns(const Job& job, uint64_t row, uint64_t begin,
                         uint64_t end) {
  const uint64_t step = column_step(job);
  for (uint32_t m = 0; m < job.moves;) {
    const auto group = same_source(
        std::span(plan_.moves).subspan(job.first_move + m, job.moves - m));
    m += static_cast<uint32_t>(group.size());
    const Move& first = group.front();
    const Lane& lane = plan_.lanes[job.first_source + first.source];
    const uint64_t low = std::max(begin, first.source_column);
    const uint64_t high = std::min(end, first.source_column + first.bytes);
    for (uint64_t at = low; at < high; at += step)
      direct_->want(lane.file, lane.offset + row * lane.row_stride + at,
                    std::min(step, high - at));
  }
}

}  // namespace ckpt::reshard
