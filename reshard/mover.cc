#include "reshard/mover.h"

#include "lib/interrupt.h"

namespace ckpt::reshard {

Mover::Mover(const Plan& plan, const Catalog& source, Output& output,
             HandleCache& handles, const RunOptions& options, uint64_t block)
    : plan_(plan),
      output_(output),
      options_(options),
      block_(block),
      reader_(source.files, handles),
      in_(std::make_unique_for_overwrite<std::byte[]>(block)),
      out_(std::make_unique_for_overwrite<std::byte[]>(block)),
      source_digests_(options.digest ? plan.slots : 0),
      target_digests_(options.digest ? plan.tensors.size() : 0) {}

void Mover::run(const Item& item) {
  if (item.gather) {
    run_gather(plan_.gathers[item.index]);
    return;
  }
  const Job& job = plan_.jobs[item.index];
  if (job.rows == 1)
    run_columns(job, 0, item.begin, item.end);
  else
    run_rows(job, item.begin, item.end);
}

void Mover::account(uint32_t digest_slot, uint32_t check_slot, uint32_t tensor,
                    uint64_t offset, std::span<const std::byte> bytes) {
  if (digest_slot == kNone && check_slot == kNone) return;
  if (options_.digest) {
    const Digest part = digest(offset, bytes);
    if (digest_slot != kNone) source_digests_[digest_slot] += part;
    if (check_slot != kNone) source_digests_[check_slot] += part;
  }
  if (options_.observe && digest_slot != kNone)
    options_.observe(tensor, offset, bytes);
}

void Mover::write(uint32_t file, uint64_t offset, std::span<iovec> parts) {
  for (const iovec& part : parts) bytes_written_ += part.iov_len;
  output_.write(file, offset, parts);
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
