// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/mover.h"

#include <utility>

#include "lib/interrupt.h"
#include "lib/trace.h"

namespace ckpt::reshard {

DeviceMover::DeviceMover(const CudaModule& module, const Plan& plan,
                         Mover& host, const RunOptions& options, uint64_t block)
    : module_(module),
      host_(host),
      options_(options),
      ring_(module, kSlots, block),
      blocks_(plan, module, block, options.digest, options.count_losses) {}

void DeviceMover::run(const Item& item, const Done& done) {
  if (options_.observe || !blocks_.begin(item)) {
    const Outcome& outcome = host_.run(item);
    if (!interrupted()) done(outcome);
    return;
  }
  Started& started = items_.emplace_back();
  started.outcome.item = item.number;
  Flight flight;
  while (!interrupted() && blocks_.next(flight.block)) {
    if (flights_.size() == kSlots) land(done);
    flight.slot = next_slot_;
    flight.item = &started;
    next_slot_ = (next_slot_ + 1) % kSlots;
    submit(flight);
    ++started.blocks;
    flights_.push_back(std::move(flight));
    flight = {};
  }
  if (interrupted()) return;
  started.whole = true;
  settle(done);
}

void DeviceMover::finish(const Done& done) {
  while (!flights_.empty() && !interrupted()) land(done);
  if (!interrupted()) settle(done);
}

void DeviceMover::submit(Flight& flight) {
  const CkptCudaApi& api = module_.api();
  const Block& block = flight.block;
  auto* in = static_cast<std::byte*>(api.ring_in(ring_.get(), flight.slot));
  for (const Block::Read& read : block.reads)
    read_part(read, {in + read.at, read.bytes});
  const trace::Span span("submit", block.in_bytes);
  const CkptCudaWork work{.in_bytes = block.in_bytes,
                          .out_bytes = block.out_bytes,
                          .copies = block.copies.data(),
                          .copy_count = block.copies.size(),
                          .digests = block.digests.data(),
                          .digest_count = block.digests.size()};
  module_.require(api.ring_submit(ring_.get(), flight.slot, &work));
}

// Tiles overlap in the file, so they give no checksum.
void DeviceMover::read_part(const Block::Read& read,
                            std::span<std::byte> bytes) {
  if (read.checked) {
    host_.read(read.file, read.offset, bytes);
    return;
  }
  const trace::Span span("read", bytes.size());
  host_.reader_.read(read.file, read.offset, bytes);
}

void DeviceMover::land(const Done& done) {
  Flight& flight = flights_.front();
  const CkptCudaApi& api = module_.api();
  sums_.resize(flight.block.digests.size());
  {
    const trace::Span span("wait for GPU", flight.block.in_bytes);
    module_.require(api.ring_wait(ring_.get(), flight.slot, sums_.data()));
  }
  std::swap(host_.outcome_, flight.item->outcome);
  add_sums(flight, sums_);
  write(flight.block,
        static_cast<const std::byte*>(api.ring_out(ring_.get(), flight.slot)));
  std::swap(host_.outcome_, flight.item->outcome);
  options_.progress.advance(flight.block.wanted);
  --flight.item->blocks;
  flights_.pop_front();
  settle(done);
}

void DeviceMover::add_sums(const Flight& flight,
                           const std::vector<CkptCudaSum>& sums) {
  for (size_t i = 0; i < sums.size(); ++i) {
    const Digest part{sums[i].d0, sums[i].d1};
    const Block::Counts& counts = flight.block.counts[i];
    host_.add_source(counts.slot, part);
    host_.add_source(counts.check, part);
    if (counts.target != kNone) host_.add_target(counts.target, part);
  }
}

void DeviceMover::write(const Block& block, const std::byte* out) {
  for (const Block::Write& write : block.writes) {
    std::vector<uint64_t> index(write.steps.size(), 0);
    for (bool more = true; more;) {
      uint64_t offset = write.offset, at = write.at;
      for (size_t d = 0; d < index.size(); ++d) {
        offset += index[d] * write.steps[d].offset;
        at += index[d] * write.steps[d].at;
      }
      iovec part{const_cast<std::byte*>(out) + at, write.bytes};
      host_.write(write.file, offset, {&part, 1});
      more = false;
      for (size_t d = index.size(); d-- > 0 && !more;) {
        more = ++index[d] < write.steps[d].size;
        if (!more) index[d] = 0;
      }
    }
  }
}

// Items end in the order in which they began.
void DeviceMover::settle(const Done& done) {
  while (!items_.empty() && items_.front().whole &&
         items_.front().blocks == 0) {
    done(items_.front().outcome);
    items_.pop_front();
    if (host_.behind_.on()) host_.leave_behind();
  }
}

}  // namespace ckpt::reshard
