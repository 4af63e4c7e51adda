// SPDX-License-Identifier: Apache-2.0
// Moves rows: one read for each source lane's block of rows, one vectored write
// for each target lane's block. A read or write for each slice would cost a
// system call per row, more than copying a slice of 2 KiB (docs/engine.md).
#include <algorithm>
#include <cstring>

#include "lib/interrupt.h"
#include "lib/trace.h"
#include "reshard/numbers/transform.h"
#include "reshard/plan/tiles.h"
#include "reshard/run/mover.h"

namespace ckpt::reshard {
uint64_t Mover::row_step(const Job& job) const {
  const PlannedTensor& tensor = plan_.tensors[job.tensor];
  uint64_t row_bytes = 0;
  for (uint32_t i = 0; i < job.sources; ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    row_bytes += bytes_per_row(lane);
  }
  uint64_t room = block_;
  if (tensor.casts())
    room = room / std::max<uint64_t>(1, element_size(tensor.target_dtype)) *
           std::min(element_size(tensor.source_dtype),
                    element_size(tensor.target_dtype));
  return row_bytes ? room / row_bytes : 1;
}

void Mover::run_rows(const Job& job, uint64_t begin, uint64_t end) {
  const uint64_t step = row_step(job);
  if (step == 0) {
    for (uint64_t row = begin; row < end; ++row)
      run_columns(job, row, 0, UINT64_MAX);
    return;
  }
  for (uint64_t row = begin; row < end && !interrupted(); row += step)
    move_block(job, row, std::min(step, end - row));
}

void Mover::move_block(const Job& job, uint64_t row, uint64_t rows) {
  loaded_.assign(job.sources, {});
  std::byte* at = in_;
  uint64_t wanted = 0;
  for (uint32_t i = 0; i < job.sources; ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    loaded_[i].data = at;
    load(lane, row, rows, loaded_[i]);
    at += rows * bytes_per_row(lane);
    wanted += rows * lane.width;
    if (!lane.transform) continue;
    for (uint64_t r = 0; r < (loaded_[i].stride ? rows : 1); ++r)
      apply_transform(lane.transform, plan_.tensors[job.tensor].source_dtype,
                      {loaded_[i].data + r * loaded_[i].stride, lane.width});
  }
  digest_block(job, row, rows);
  if (plan_.tensors[job.tensor].casts()) cast_block(job, row, rows);
  for (uint32_t t = 0; t < job.targets; ++t) write_lane(job, t, row, rows);
  options_.progress.advance(wanted);
}

void Mover::load(const Lane& lane, uint64_t row, uint64_t rows,
                 Loaded& loaded) {
  const uint64_t first = lane.offset + row * lane.row_stride;
  if (is_dense(lane)) {
    loaded.stride = lane.row_stride;
    read_rows(lane, first, rows,
              {loaded.data, (rows - 1) * lane.row_stride + lane.width});
    return;
  }
  loaded.stride = lane.width;
  for (uint64_t r = 0; r < rows; ++r)
    read(lane.file, first + r * lane.row_stride,
         {loaded.data + r * lane.width, lane.width});
}

void Mover::digest_block(const Job& job, uint64_t row, uint64_t rows) {
  const auto counts = [](const Move& move) {
    return move.digest != kNone || move.check != kNone;
  };
  const auto moves = std::span(plan_.moves).subspan(job.first_move, job.moves);
  uint64_t bytes = 0;
  for (const Move& move : moves)
    if (counts(move)) bytes += rows * move.bytes;
  if (bytes == 0) return;
  const trace::Span span("digest", bytes);
  for (const Move& move : moves) {
    if (!counts(move)) continue;
    const Loaded& lane = loaded_[move.source];
    const std::byte* data = lane.data + move.source_column;
    const uint64_t content = move.content + row * move.content_stride;
    if (options_.digest) {
      const Digest part = digest_rows(content, move.content_stride, data,
                                      lane.stride, move.bytes, rows);
      add_source(move.digest, part);
      add_source(move.check, part);
    }
    if (move.digest != kNone)
      count_losses(job.tensor, data, lane.stride, move.bytes, rows);
    if (options_.observe && move.digest != kNone)
      for (uint64_t r = 0; r < rows; ++r)
        options_.observe(job.tensor, content + r * move.content_stride,
                         {data + r * lane.stride, move.bytes});
  }
}

// Casts whole lanes, so that short rows don't pay for a call each; from here
// on strides and columns count target bytes.
void Mover::cast_block(const Job& job, uint64_t row, uint64_t rows) {
  const PlannedTensor& tensor = plan_.tensors[job.tensor];
  const uint64_t from = element_size(tensor.source_dtype);
  const uint64_t to = element_size(tensor.target_dtype);
  std::byte* at = out_;
  for (uint32_t i = 0; i < job.sources; ++i) {
    Loaded& lane = loaded_[i];
    const uint64_t count =
        ((rows - 1) * lane.stride + plan_.lanes[job.first_source + i].width) /
        from;
    cast(tensor, lane.data, at, count);
    lane.data = at;
    lane.stride = lane.stride / from * to;
    at += count * to;
  }
  if (!options_.digest) return;
  for (uint32_t m = 0; m < job.moves; ++m) {
    const Move& move = plan_.moves[job.first_move + m];
    if (move.digest == kNone) continue;
    const Loaded& lane = loaded_[move.source];
    add_target(
        move.digest,
        digest_rows((move.content + row * move.content_stride) / from * to,
                    move.content_stride / from * to,
                    lane.data + move.source_column / from * to, lane.stride,
                    move.bytes / from * to, rows));
  }
}

void Mover::write_lane(const Job& job, uint32_t target, uint64_t row,
                       uint64_t rows) {
  const PlannedTensor& tensor = plan_.tensors[job.tensor];
  const Lane& lane = plan_.lanes[job.first_target + target];
  const bool casts = tensor.casts();
  const uint64_t from =
      std::max<uint64_t>(element_size(tensor.source_dtype), 1);
  const uint64_t to = std::max<uint64_t>(element_size(tensor.target_dtype), 1);
  const auto scaled = [&](uint64_t bytes) {
    return casts ? bytes / from * to : bytes;
  };
  const auto moves = std::span(plan_.moves).subspan(job.first_move, job.moves);
  const auto count =
      static_cast<uint64_t>(std::ranges::count(moves, target, &Move::target));
  const bool pack = lane.width < kPackBelow * count;
  const bool contiguous = lane.row_stride == lane.width;
  // The free buffer: after a cast, the data are in out_.
  std::byte* packed = casts ? in_ : out_;

  parts_.clear();
  for (uint64_t r = 0; r < rows; ++r) {
    for (const Move& move : moves) {
      if (move.target != target) continue;
      const std::byte* data = loaded_[move.source].data +
                              r * loaded_[move.source].stride +
                              scaled(move.source_column);
      if (pack) {
        std::memcpy(packed, data, scaled(move.bytes));
        data = packed;
        packed += scaled(move.bytes);
      }
      add_part(data, scaled(move.bytes));
    }
    if (contiguous) continue;
    write(lane.file, lane.offset + (row + r) * lane.row_stride, parts_);
    parts_.clear();
  }
  if (contiguous) write(lane.file, lane.offset + row * lane.row_stride, parts_);
}

}  // namespace ckpt::reshard
