// SPDX-License-Identifier: Apache-2.0
#include "api/write/sending.h"

#include <algorithm>

#include "lib/io/upload.h"
#include "reshard/ranks/job.h"

namespace ckpt::library {
namespace {

std::vector<uint64_t> part_sizes(const io::Upload& upload, size_t files) {
  std::vector<uint64_t> sizes;
  for (uint32_t f = 0; f < files; ++f) sizes.push_back(upload.part_bytes(f));
  return sizes;
}

}  // namespace

Sending::Sending(const Prepared& prepared, io::Upload& upload, size_t files)
    : upload_(upload),
      parts_(prepared.plan, prepared.target, part_sizes(upload, files)) {}

std::unique_ptr<Sending> Sending::begin(const Prepared& prepared,
                                        io::Staging& staging) {
  io::Upload* const upload = staging.begin_upload();
  if (!upload) return nullptr;
  return std::unique_ptr<Sending>(
      new Sending(prepared, *upload, prepared.target.files.size()));
}

Sending::Earlier Sending::sort(
    const std::vector<reshard::Outcome>& done) const {
  Earlier earlier;
  for (const reshard::Outcome& outcome : done) {
    bool any = false, all = true;
    parts_.for_each_part(outcome.item, [&](uint32_t file, uint64_t part) {
      any |= upload_.was_sent(file, part);
      all &= upload_.stands(file, part);
    });
    if (any && all && parts_.only_to_parts(outcome.item))
      earlier.sent.push_back(outcome);
    else if (any)
      ++earlier.gone;
    else
      earlier.here.push_back(outcome);
  }
  return earlier;
}

void Sending::follow(reshard::Output& output, reshard::RunOptions& run) {
  if (ranks::current()) return;
  parts_.begin(output, [&](uint32_t file, uint64_t part) {
    upload_.send(file, part, parts_.spare(file, part));
  });
  run.finished = [&](uint32_t item) { parts_.finished(item); };
}

// Room for begun parts, those waiting for the network, and what stays until the
// end: everything but payload, and small files.
uint64_t spool_bytes(const Prepared& prepared) {
  constexpr uint64_t kWaiting = 48;  // parts
  constexpr uint64_t kMostSmall = uint64_t{256} << 20;
  const uint64_t all = prepared.file_bytes();
  if (ranks::current()) return all;
  std::vector<uint64_t> sizes;
  uint64_t part = 0;
  for (const TargetFile& file : prepared.target.files) {
    sizes.push_back(std::max<uint64_t>(1, io::upload_cost(file.size).part));
    part = std::max(part, sizes.back());
  }
  const uint64_t open =
      reshard::TargetParts(prepared.plan, prepared.target, sizes).most_open();
  const uint64_t rest = all - std::min(all, prepared.plan.bytes_written);
  return std::min(all, open + kWaiting * part + kMostSmall + rest);
}

}  // namespace ckpt::library
