// SPDX-License-Identifier: Apache-2.0
// Moves contiguous bytes: one read, then one write for each target that wants
// them.
#include <algorithm>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/remote.h"
#include "reshard/numbers/transform.h"
#include "reshard/run/mover.h"

namespace ckpt::reshard {

std::span<const Move> Mover::same_source(std::span<const Move> moves) {
  const Move& first = moves.front();
  const auto end = std::ranges::find_if_not(moves, [&](const Move& move) {
    return move.source == first.source &&
           move.source_column == first.source_column &&
           move.bytes == first.bytes;
  });
  return {moves.begin(), end};
}

uint64_t Mover::column_step(const Job& job) const {
  const PlannedTensor& tensor = plan_.tensors[job.tensor];
  if (!tensor.casts()) return block_;
  const uint64_t from =
      std::max<uint64_t>(element_size(tensor.source_dtype), 1);
  const uint64_t to = std::max<uint64_t>(element_size(tensor.target_dtype), 1);
  return to > from ? block_ / to * from : block_;
}

void Mover::run_columns(const Job& job, uint64_t row, uint64_t begin,
                        uint64_t end) {
  for (uint32_t m = 0; m < job.moves;) {
    const auto group = same_source(
        std::span(plan_.moves).subspan(job.first_move + m, job.moves - m));
    const Move& first = group.front();
    m += static_cast<uint32_t>(group.size());
    const uint64_t low = std::max(begin, first.source_column);
    const uint64_t high = std::min(end, first.source_column + first.bytes);
    if (low >= high) continue;
    if (group.size() > 1 || !is_blind(job, first)) {
      copy_columns(job, row, group, low, high);
      continue;
    }
    const Lane& source = plan_.lanes[job.first_source + first.source];
    const Lane& target = plan_.lanes[job.first_target + first.target];
    uint64_t head = 0, tail = 0;
    share(source, source.offset + row * source.row_stride + low, target.file,
          target.offset + row * target.row_stride + first.target_column + low -
              first.source_column,
          high - low, head, tail);
    options_.progress.advance(tail - head);
    copy_columns(job, row, group, low, low + head);
    copy_columns(job, row, group, low + tail, high);
  }
}

bool Mover::is_blind(const Job& job, const Move& move) const {
  const bool digested =
      options_.digest && (move.digest != kNone || move.check != kNone);
  const Lane& source = plan_.lanes[job.first_source + move.source];
  return !digested && !options_.observe && !crcs_ && move.target != kNone &&
         !plan_.tensors[job.tensor].casts() && !source.transform &&
         !io::is_url(files_[source.file].path);
}

void Mover::copy_columns(const Job& job, uint64_t row,
                         std::span<const Move> moves, uint64_t low,
                         uint64_t high) {
  const PlannedTensor& tensor = plan_.tensors[job.tensor];
  const bool casts = tensor.casts();
  const uint64_t from =
      std::max<uint64_t>(element_size(tensor.source_dtype), 1);
  const uint64_t to = std::max<uint64_t>(element_size(tensor.target_dtype), 1);
  const auto scaled = [&](uint64_t bytes) {
    return casts ? bytes / from * to : bytes;
  };
  const uint64_t step = column_step(job);
  const Lane& source = plan_.lanes[job.first_source + moves[0].source];
  for (uint64_t at = low; at < high; at += step) {
    if (interrupted()) return;
    const std::span<std::byte> bytes(in_, std::min(step, high - at));
    const uint64_t place = source.offset + row * source.row_stride + at;
    const std::optional<uint32_t> crc = read(source.file, place, bytes);
    if (source.transform)
      apply_transform(source.transform, tensor.source_dtype, bytes);
    const uint64_t into = at - moves[0].source_column;
    for (const Move& move : moves)
      account(move.digest, move.check, job.tensor,
              move.content + row * move.content_stride + into, bytes);
    std::span<std::byte> result = bytes;
    if (casts) {
      result = {out_, scaled(bytes.size())};
      cast(tensor, bytes.data(), result.data(), bytes.size() / from);
    }
    for (const Move& move : moves) {
      const uint64_t content =
          scaled(move.content + row * move.content_stride + into);
      if (casts && options_.digest && move.digest != kNone)
        add_target(move.digest, digest(content, result));
      if (move.target == kNone) continue;
      const Lane& target = plan_.lanes[job.first_target + move.target];
      const uint64_t offset = target.offset + row * target.row_stride +
                              move.target_column + scaled(into);
      if (!casts && !source.transform) {
        write_same(source, place, target.file, offset, result, crc);
        continue;
      }
      iovec part{result.data(), result.size()};
      write(target.file, offset, {&part, 1});
    }
    options_.progress.advance(bytes.size());
  }
}

}  // namespace ckpt::reshard
