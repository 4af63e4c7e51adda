// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/block.h"

#include <algorithm>

#include "ckpt/catalog.h"
#include "reshard/numbers/cast_loss.h"

namespace ckpt::reshard {
namespace {

// Parts of a buffer begin at a multiple of this, so that vectors are aligned if
// the file's rows are.
constexpr uint64_t kAlign = 16;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

uint64_t at_least_1(uint64_t bytes) { return std::max<uint64_t>(bytes, 1); }

bool same_source(const Move& a, const Move& b) {
  return a.source == b.source && a.source_column == b.source_column &&
         a.bytes == b.bytes;
}

CkptCudaDigest run_digest(uint32_t buffer, uint64_t at, uint64_t content,
                          uint64_t bytes) {
  CkptCudaDigest digest{};
  digest.buffer = buffer;
  digest.at = at;
  digest.content = content;
  digest.bytes = static_cast<uint32_t>(bytes);
  return digest;
}

CkptCudaDigest rows_digest(CkptCudaDigest run, uint64_t rows, uint64_t stride,
                           uint64_t content_stride) {
  run.dims = 1;
  run.shape[0] = static_cast<uint32_t>(rows);
  run.stride[0] = stride;
  run.content_stride[0] = content_stride;
  return run;
}

void add_step(CkptCudaCopy& copy, uint64_t size, uint64_t in, uint64_t out) {
  copy.shape[copy.dims] = static_cast<uint32_t>(size);
  copy.in_stride[copy.dims] = in;
  copy.out_stride[copy.dims] = out;
  ++copy.dims;
}

// The tile's place in the target file; adjacent runs are merged.
Block::Write tile_write(const Gather& gather, const Dims& begin,
                        const Dims& shape, uint64_t element) {
  Block::Write write{
      .file = gather.target_file,
      .offset = gather.target_offset + dot(begin, gather.target_strides),
      .bytes = element};
  uint64_t packed = element;
  for (size_t d = shape.size(); d-- > 0; packed *= shape[d]) {
    if (shape[d] == 1) continue;
    if (write.steps.empty() && gather.target_strides[d] == write.bytes)
      write.bytes *= shape[d];
    else
      write.steps.push_back({shape[d], gather.target_strides[d], packed});
  }
  std::ranges::reverse(write.steps);
  return write;
}

}  // namespace

void Block::clear() {
  reads.clear();
  copies.clear();
  digests.clear();
  counts.clear();
  writes.clear();
  in_bytes = out_bytes = wanted = 0;
}

bool Blocks::cast_of(const PlannedTensor& tensor) {
  casts_ = tensor.casts();
  from_ = at_least_1(element_size(tensor.source_dtype));
  to_ = at_least_1(element_size(tensor.target_dtype));
  if (!casts_) return true;
  if (count_ && loss_counter(tensor.source_dtype, tensor.target_dtype).counts())
    return false;
  const auto found = module_.cast(tensor.source_dtype, tensor.target_dtype);
  if (found) cast_ = *found;
  return found.has_value();
}

bool Blocks::begin(const Item& item) {
  item_ = item;
  return item.gather ? begin_gather(plan_.gathers[item.index])
                     : begin_job(plan_.jobs[item.index]);
}

bool Blocks::begin_job(const Job& job) {
  if (!cast_of(plan_.tensors[job.tensor])) return false;
  const auto lanes = std::span(plan_.lanes);
  const auto sources = lanes.subspan(job.first_source, job.sources);
  const auto targets = lanes.subspan(job.first_target, job.targets);
  uint64_t row_in = 0, row_out = 0, wanted = 0;
  for (const Lane& lane : sources) {
    if (lane.transform) return false;
    row_in += bytes_per_row(lane);
    wanted += lane.width;
  }
  for (const Lane& lane : targets) row_out += lane.width;
  const uint64_t rows = item_.end - item_.begin;
  if ((job.rows == 1 ? rows : wanted * rows) < module_.api().least_bytes)
    return false;
  at_ = item_.begin;
  if (job.rows == 1) {
    kind_ = Kind::kColumns;
    move_ = 0;
    start_group();
    return casts_ || job.targets == 0;
  }
  kind_ = Kind::kRows;
  // The digest of a cast's result is taken where it is written from.
  const auto moves = std::span(plan_.moves).subspan(job.first_move, job.moves);
  if (casts_ && std::ranges::any_of(moves, [](const Move& move) {
        return move.target == kNone && move.digest != kNone;
      }))
    return false;
  const uint64_t lost = kAlign * std::max(job.sources, job.targets);
  const uint64_t row = at_least_1(std::max(row_in, row_out));
  if (room_ < lost + row) return false;
  step_ = std::min<uint64_t>((room_ - lost) / row, UINT32_MAX);
  return true;
}

bool Blocks::begin_gather(const Gather& gather) {
  const PlannedTensor& tensor = plan_.tensors[gather.tensor];
  if (gather.transform || gather.shape.size() > CKPT_CUDA_DIMS ||
      !cast_of(tensor) || element_size(tensor.source_dtype) == 0)
    return false;
  const uint64_t count = element_count(gather.shape).value_or(UINT64_MAX);
  if (count < module_.api().least_bytes / from_) return false;
  kind_ = Kind::kGather;
  tiles_ = Tiles(
      gather,
      {.element = from_, .span = room_, .count = room_ / std::max(from_, to_)});
  return true;
}

bool Blocks::next(Block& block) {
  block.clear();
  switch (kind_) {
    case Kind::kColumns:
      return next_columns(block);
    case Kind::kRows:
      return next_rows(block);
    default:
      return next_tile(block);
  }
}

void Blocks::add_digest(const CkptCudaDigest& digest, Block::Counts counts,
                        Block& block) const {
  if (!digest_) return;
  if (counts.slot == kNone && counts.check == kNone && counts.target == kNone)
    return;
  block.digests.push_back(digest);
  block.counts.push_back(counts);
}

CkptCudaCopy Blocks::plain_copy() const {
  CkptCudaCopy copy{};
  copy.in_buffer = CKPT_CUDA_IN;
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.element = 1;
  return copy;
}

CkptCudaCopy Blocks::cast_copy() const {
  CkptCudaCopy copy = plain_copy();
  copy.element = static_cast<uint32_t>(from_);
  copy.from = cast_.from;
  copy.to = cast_.to;
  return copy;
}

// Moves with the same columns are one group: a block is cast once for all of
// them.
void Blocks::start_group() {
  const Job& job = plan_.jobs[item_.index];
  if (move_ >= job.moves) return;
  const auto all =
      std::span(plan_.moves).subspan(job.first_move + move_, job.moves - move_);
  const auto end = std::ranges::find_if_not(
      all, [&](const Move& move) { return same_source(all[0], move); });
  group_ = static_cast<uint32_t>(end - all.begin());
  at_ = std::max(item_.begin, all[0].source_column);
  end_ = std::min(item_.end, all[0].source_column + all[0].bytes);
}

bool Blocks::next_columns(Block& block) {
  const Job& job = plan_.jobs[item_.index];
  while (move_ < job.moves && at_ >= end_) {
    move_ += group_;
    start_group();
  }
  if (move_ >= job.moves) return false;
  const auto group =
      std::span(plan_.moves).subspan(job.first_move + move_, group_);
  const Lane& source = plan_.lanes[job.first_source + group[0].source];
  const uint64_t room = room_ / std::max(from_, to_) * from_;
  const uint64_t bytes = std::min(room, end_ - at_);
  block.reads.push_back({source.file, source.offset + at_, 0, bytes});
  block.in_bytes = block.wanted = bytes;
  if (casts_) {
    CkptCudaCopy copy = cast_copy();
    add_step(copy, bytes / from_, from_, to_);
    block.copies.push_back(copy);
  }
  for (const Move& move : group) {
    const uint64_t into = at_ - move.source_column;
    const uint64_t content = move.content + into;
    add_digest(run_digest(CKPT_CUDA_IN, 0, content, bytes),
               {.slot = move.digest, .check = move.check}, block);
    if (casts_ && move.digest != kNone)
      add_digest(run_digest(CKPT_CUDA_OUT, 0, scaled(content), scaled(bytes)),
                 {.target = job.tensor}, block);
    if (move.target == kNone) continue;
    const Lane& target = plan_.lanes[job.first_target + move.target];
    block.writes.push_back(
        {.file = target.file,
         .offset = target.offset + move.target_column + scaled(into),
         .bytes = scaled(bytes),
         .steps = {}});
    block.out_bytes = scaled(bytes);
  }
  at_ += bytes;
  return true;
}

bool Blocks::next_rows(Block& block) {
  if (at_ >= item_.end) return false;
  const Job& job = plan_.jobs[item_.index];
  const uint64_t rows = std::min(step_, item_.end - at_);
  read_lanes(job, at_, rows, block);
  move_lanes(job, at_, rows, block);
  at_ += rows;
  return true;
}

void Blocks::read_lanes(const Job& job, uint64_t row, uint64_t rows,
                        Block& block) {
  lanes_.clear();
  uint64_t at = 0;
  for (uint32_t i = 0; i < job.sources; ++i) {
    const Lane& lane = plan_.lanes[job.first_source + i];
    const uint64_t first = lane.offset + row * lane.row_stride;
    block.wanted += rows * lane.width;
    if (is_dense(lane)) {
      const uint64_t bytes = (rows - 1) * lane.row_stride + lane.width;
      block.reads.push_back({lane.file, first, at, bytes});
      lanes_.emplace_back(at, lane.row_stride);
      at = aligned(at + bytes);
      continue;
    }
    for (uint64_t r = 0; r < rows; ++r)
      block.reads.push_back({lane.file, first + r * lane.row_stride,
                             at + r * lane.width, lane.width});
    lanes_.emplace_back(at, lane.width);
    at = aligned(at + rows * lane.width);
  }
  block.in_bytes = std::min(at, room_);
}

// Each target lane's part of the block is one contiguous part of the buffer.
void Blocks::move_lanes(const Job& job, uint64_t row, uint64_t rows,
                        Block& block) {
  std::vector<uint64_t> starts;
  uint64_t at = 0;
  for (uint32_t t = 0; t < job.targets; ++t) {
    const Lane& lane = plan_.lanes[job.first_target + t];
    starts.push_back(at);
    Block::Write write{.file = lane.file,
                       .offset = lane.offset + row * lane.row_stride,
                       .at = at,
                       .bytes = lane.width,
                       .steps = {}};
    if (lane.row_stride == lane.width)
      write.bytes *= rows;
    else
      write.steps.push_back({rows, lane.row_stride, lane.width});
    block.writes.push_back(write);
    at = aligned(at + rows * lane.width);
  }
  block.out_bytes = std::min(at, room_);
  for (const Move& move :
       std::span(plan_.moves).subspan(job.first_move, job.moves)) {
    const auto [first, stride] = lanes_[move.source];
    const uint64_t from = first + move.source_column;
    const uint64_t content = move.content + row * move.content_stride;
    add_digest(rows_digest(run_digest(CKPT_CUDA_IN, from, content, move.bytes),
                           rows, stride, move.content_stride),
               {.slot = move.digest, .check = move.check}, block);
    if (move.target == kNone) continue;
    const uint64_t width = plan_.lanes[job.first_target + move.target].width;
    CkptCudaCopy copy = casts_ ? cast_copy() : plain_copy();
    copy.in = from;
    copy.out = starts[move.target] + move.target_column;
    add_step(copy, rows, stride, width);
    add_step(copy, move.bytes / copy.element, copy.element, casts_ ? to_ : 1);
    block.copies.push_back(copy);
    if (casts_ && move.digest != kNone)
      add_digest(rows_digest(run_digest(CKPT_CUDA_OUT, copy.out,
                                        scaled(content), scaled(move.bytes)),
                             rows, width, scaled(move.content_stride)),
                 {.target = job.tensor}, block);
  }
}

bool Blocks::next_tile(Block& block) {
  const Gather& gather = plan_.gathers[item_.index];
  Dims begin, shape;
  if (!tiles_.next(begin, shape)) return false;
  fill_tile(gather, begin, shape, block);
  return true;
}

// Puts the source's elements in order first: the digest is taken of those, and
// a cast goes through rows.
void Blocks::fill_tile(const Gather& gather, const Dims& begin,
                       const Dims& shape, Block& block) const {
  const uint64_t count = element_count(shape).value_or(0);
  const uint64_t content = gather.content + dot(begin, gather.content_strides);
  const uint32_t sorted = casts_ ? CKPT_CUDA_MID : CKPT_CUDA_OUT;
  block.in_bytes = span_of(gather, shape, from_);
  block.out_bytes = gather.target_file == kNone ? 0 : count * to_;
  block.wanted = count * from_;
  block.reads.push_back(
      {gather.source_file,
       gather.source_offset + dot(begin, gather.source_strides), 0,
       block.in_bytes, false});
  CkptCudaCopy copy = plain_copy();
  copy.out_buffer = sorted;
  copy.element = static_cast<uint32_t>(from_);
  CkptCudaDigest before = run_digest(sorted, 0, content * from_, from_);
  CkptCudaDigest after = run_digest(CKPT_CUDA_OUT, 0, content * to_, to_);
  uint64_t packed = count;
  for (size_t d = 0; d < shape.size(); ++d) {
    packed /= shape[d];
    add_step(copy, shape[d], gather.source_strides[d], packed * from_);
    before.shape[d] = after.shape[d] = copy.shape[d];
    before.stride[d] = packed * from_;
    before.content_stride[d] = gather.content_strides[d] * from_;
    after.stride[d] = packed * to_;
    after.content_stride[d] = gather.content_strides[d] * to_;
  }
  before.dims = after.dims = copy.dims;
  block.copies.push_back(copy);
  if (casts_) {
    CkptCudaCopy cast = cast_copy();
    cast.in_buffer = CKPT_CUDA_MID;
    add_step(cast, count, from_, to_);
    block.copies.push_back(cast);
  }
  add_digest(before, {.slot = gather.digest, .check = gather.check}, block);
  if (casts_ && gather.digest != kNone)
    add_digest(after, {.target = gather.tensor}, block);
  if (gather.target_file != kNone)
    block.writes.push_back(tile_write(gather, begin, shape, to_));
}

}  // namespace ckpt::reshard
