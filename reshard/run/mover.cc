// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/mover.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/processors.h"
#include "lib/trace.h"

namespace ckpt::reshard {
namespace {

// Streams of compressed sources may use half of what the blocks leave of a
// run's memory. With too little, the lanes of a job evict each other's streams,
// and each block decompresses its chunks from the start.
uint64_t stream_memory(const RunOptions& options, uint64_t block) {
  static const uint32_t cores = processors();
  const uint64_t threads = std::max({1U, options.threads, cores});
  const uint64_t share = options.max_mem / threads;
  return share > 2 * block ? (share - 2 * block) / 2 : 0;
}

}  // namespace

Mover::Mover(const Plan& plan, const Catalog& source, Output& output,
             OpenSources& open, const RunOptions& options, uint64_t block,
             SourceCrcs* crcs)
    : plan_(plan),
      output_(output),
      options_(options),
      block_(block),
      files_(source.files),
      direct_files_(open.direct),
      reader_(source.files, open.handles, stream_memory(options, block)),
      crcs_(crcs),
      buffer_(2 * block),
      in_(buffer_.data()),
      out_(in_ + block) {}

namespace {

// Adds to a sum by index. An item has few of them, and it is usually the last
// one again.
void add_to(std::vector<std::pair<uint32_t, Digest>>& sums, uint32_t index,
            const Digest& part) {
  for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum)
    if (sum->first == index) {
      sum->second += part;
      return;
    }
  sums.emplace_back(index, part);
}

}  // namespace

void Mover::read_unchecked(uint32_t file, uint64_t offset,
                           std::span<std::byte> bytes) {
  bool through_cache = false;
  {
    const trace::Span span("read", bytes.size());
    through_cache = reader_.read(file, offset, bytes);
  }
  if (through_cache && !was_cached_) behind_.read(file, offset, bytes.size());
  if (options_.passed) options_.passed(file, offset, bytes);
}

std::optional<uint32_t> Mover::read(uint32_t file, uint64_t offset,
                                    std::span<std::byte> bytes) {
  read_unchecked(file, offset, bytes);
  if (!crcs_) return {};
  const trace::Span span("crc", bytes.size());
  return crcs_->add(file, offset, bytes);
}

// What is between the rows belongs to another lane. The checksum of a record
// counts each byte once, so it is complete when all its lanes have been read,
// and the record isn't read again for it: over a network that would cost as
// much as the first time.
void Mover::read_rows(const Lane& lane, uint64_t first, uint64_t rows,
                      std::span<std::byte> bytes) {
  constexpr uint64_t kLeastRow = 512;  // summing shorter ones costs more
  if (lane.row_stride <= lane.width || lane.width < kLeastRow) {
    read(lane.file, first, bytes);
    return;
  }
  read_unchecked(lane.file, first, bytes);
  if (!crcs_) return;
  const trace::Span span("crc", rows * lane.width);
  for (uint64_t r = 0; r < rows; ++r)
    crcs_->add(lane.file, first + r * lane.row_stride,
               bytes.subspan(r * lane.row_stride, lane.width));
}

void Mover::add_source(uint32_t slot, const Digest& part) {
  if (slot != kNone) add_to(outcome_.source, slot, part);
}

void Mover::add_target(uint32_t tensor, const Digest& part) {
  add_to(outcome_.target, tensor, part);
}

uint32_t Mover::tensor_of(const Item& item) const {
  return item.gather ? plan_.gathers[item.index].tensor
                     : plan_.jobs[item.index].tensor;
}

const Outcome& Mover::run(const Item& item) {
  try {
    return move(item);
  } catch (const Error& error) {
    const std::string& path = error.where().path;
    if (error.code() != ExitCode::kIo || !error.where().tensor.empty() ||
        std::ranges::none_of(
            files_, [&path](const File& file) { return file.path == path; }))
      throw;
    // For an unreadable sector, say whose it is.
    throw Error(error.code(), {path, plan_.tensors[tensor_of(item)].name},
                error.problem(), error.hint());
  }
}

const Outcome& Mover::move(const Item& item) {
  outcome_.clear();
  outcome_.item = item.number;
  options_.progress.file(plan_.tensors[tensor_of(item)].name);
  if (item.gather) {
    run_gather(plan_.gathers[item.index]);
    return outcome_;
  }
  const Job& job = plan_.jobs[item.index];
  if (job.rows == 1)
    run_columns(job, 0, item.begin, item.end);
  else
    run_rows(job, item.begin, item.end);
  if (behind_.on()) leave_behind();
  return outcome_;
}

void Mover::account(uint32_t digest_slot, uint32_t check_slot, uint32_t tensor,
                    uint64_t offset, std::span<const std::byte> bytes) {
  if (digest_slot == kNone && check_slot == kNone) return;
  if (options_.digest) {
    const trace::Span span("digest", bytes.size());
    const Digest part = digest(offset, bytes);
    add_source(digest_slot, part);
    add_source(check_slot, part);
  }
  if (digest_slot == kNone) return;
  count_losses(tensor, bytes.data(), 0, bytes.size(), 1);
  if (options_.observe) options_.observe(tensor, offset, bytes);
}

void Mover::count_losses(uint32_t tensor, const std::byte* data,
                         uint64_t stride, uint64_t bytes, uint64_t rows) {
  const PlannedTensor& planned = plan_.tensors[tensor];
  if (!options_.count_losses || !planned.casts()) return;
  const LossCounter& counter =
      loss_counter(planned.source_dtype, planned.target_dtype);
  if (!counter.counts()) return;
  const trace::Span span("count", bytes * rows);
  CastLoss loss;
  for (uint64_t row = 0; row < rows; ++row)
    loss += counter.count({data + row * stride, bytes});
  if (!loss.any()) return;
  for (auto& [known, sum] : outcome_.losses)
    if (known == tensor) {
      sum += loss;
      return;
    }
  outcome_.losses.emplace_back(tensor, loss);
}

void Mover::write(uint32_t file, uint64_t offset, std::span<iovec> parts,
                  std::optional<uint32_t> known_crc) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  bytes_written_ += bytes;
  behind_.wrote(file, offset, bytes);
  const trace::Span span("write", bytes);
  const CrcPart crc = output_.write(file, offset, parts, known_crc);
  if (crc.file == kNone) return;
  for (CrcPart& known : outcome_.crcs)
    if (known.file == crc.file && known.index == crc.index) {
      known.value ^= crc.value;
      return;
    }
  outcome_.crcs.push_back(crc);
}

void Mover::share(const Lane& source, uint64_t from, uint32_t file,
                  uint64_t offset, uint64_t count, uint64_t& head,
                  uint64_t& tail) {
  head = tail = count;
  if (const io::Handle* handle = reader_.raw_file(source.file)) {
    const trace::Span span("clone", count);
    output_.clone(*handle, from, file, offset, count, head, tail);
  }
  bytes_written_ += tail - head;
}

void Mover::write_same(const Lane& source, uint64_t from, uint32_t file,
                       uint64_t offset, std::span<std::byte> bytes,
                       std::optional<uint32_t> crc) {
  uint64_t head = 0, tail = 0;
  share(source, from, file, offset, bytes.size(), head, tail);
  iovec part{bytes.data(), head};
  if (head != bytes.size()) crc.reset();  // it covers all of them
  if (head) write(file, offset, {&part, 1}, crc);
  part = {bytes.data() + tail, bytes.size() - tail};
  if (part.iov_len) write(file, offset + tail, {&part, 1});
}

void Mover::cast(const PlannedTensor& tensor, const std::byte* in,
                 std::byte* out, uint64_t count) {
  const trace::Span span("cast", count * element_size(tensor.source_dtype));
  options_.cast(tensor.source_dtype, tensor.target_dtype, in, out, count);
  if (options_.saturate)
    loss_counter(tensor.source_dtype, tensor.target_dtype)
        .saturate(in, out, count);
}

void Mover::leave_behind() {
  const trace::Span span("leave behind");
  const Behind::Work work = behind_.next();
  for (const Behind::Range& range : work.dropped)
    if (const io::Handle* handle = reader_.raw_file(range.file))
      handle->drop_cache(range.begin, range.end - range.begin);
  for (const Behind::Range& range : work.started)
    output_.start_writeback(range.file, range.begin, range.end - range.begin);
  for (const Behind::Range& range : work.settled)
    output_.settle(range.file, range.begin, range.end - range.begin);
}

void Mover::add_part(const std::byte* data, size_t bytes) {
  if (!parts_.empty()) {
    iovec& last = parts_.back();
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
      last.iov_len += bytes;
      return;
    }
  }
  parts_.push_back({const_cast<std::byte*>(data), bytes});
}

}  // namespace ckpt::reshard
