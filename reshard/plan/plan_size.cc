// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/plan_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"
#include "reshard/plan/work.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// What any process has besides its bound covers this much of catalogs and plan.
constexpr uint64_t kFree = 16 * kMiB;
// Buffers of two threads that can still read and write a MiB at a time.
constexpr uint64_t kLeastBuffers = 8 * kMiB;

// A tensor's share of the lists made beside a plan: its name lookup, its
// digests, its entry in the manifest.
constexpr uint64_t kBeside = 160;

// Short strings are in the string object itself.
uint64_t bytes_of(const std::string& text) {
  constexpr uint64_t kShort = 15, kHeader = 16;
  return text.size() <= kShort ? 0 : text.size() + kHeader;
}

uint64_t bytes_of(const std::vector<Literal>& literals) {
  uint64_t bytes = literals.size() * sizeof(Literal);
  for (const Literal& literal : literals) bytes += literal.bytes.capacity();
  return bytes;
}

uint64_t bytes_of(const std::vector<LateCrc>& crcs) {
  uint64_t bytes = crcs.size() * sizeof(LateCrc);
  for (const LateCrc& crc : crcs) bytes += crc.at.size() * sizeof(uint64_t);
  return bytes;
}

// Bytes outside the piece itself; nearly all have none.
uint64_t bytes_outside(const Piece& piece) {
  constexpr uint64_t kHeader = 16, kInside = 2;
  uint64_t bytes = 0;
  for (const Dims* dims : {&piece.box.offset, &piece.box.shape})
    if (dims->size() > kInside)
      bytes += dims->size() * sizeof(uint64_t) + kHeader;
  if (!piece.extent.strides.empty()) bytes += sizeof(Dims) + kHeader;
  return bytes;
}

}  // namespace

void PlanSize::add(const Plan& plan) {
  tensors += plan.tensors.size();
  jobs += plan.jobs.size();
  lanes += plan.lanes.size();
  moves += plan.moves.size();
  gathers += plan.gathers.size();
}

uint64_t PlanSize::bytes() const {
  return tensors * (sizeof(PlannedTensor) + kBeside) +
         jobs * (sizeof(Job) + sizeof(Item)) + lanes * sizeof(Lane) +
         moves * sizeof(Move) + gathers * (sizeof(Gather) + sizeof(Item));
}

uint64_t piece_bytes(const Tensor& tensor) {
  uint64_t bytes = tensor.pieces.size() * sizeof(Piece);
  for (const Piece& piece : tensor.pieces) bytes += bytes_outside(piece);
  return bytes;
}

uint64_t piece_bytes(const Catalog& catalog) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : catalog.tensors) bytes += piece_bytes(tensor);
  return bytes;
}

uint64_t held_bytes(const Catalog& catalog) {
  uint64_t bytes = piece_bytes(catalog) + catalog.files.size() * sizeof(File) +
                   catalog.crcs.size() * sizeof(StoredCrc);
  for (const Tensor& tensor : catalog.tensors)
    bytes += sizeof(Tensor) + bytes_of(tensor.name) + bytes_of(tensor.param) +
             bytes_of(tensor.state);
  return bytes;
}

uint64_t held_bytes(const Target& target) {
  uint64_t bytes = held_bytes(target.catalog);
  std::unordered_set<const void*> seen;  // lists that files share
  for (const TargetFile& file : target.files) {
    const std::vector<Literal>& literals = file.literals.get();
    const std::vector<LateCrc>& crcs = file.crcs.get();
    if (seen.insert(literals.data()).second) bytes += bytes_of(literals);
    if (seen.insert(crcs.data()).second) bytes += bytes_of(crcs);
    bytes += sizeof(TargetFile) + file.shared.size() * sizeof(SharedLiteral) +
             file.carried.size() * sizeof(CarriedRange) +
             crcs.size() * sizeof(uint32_t);  // the sums as they grow
  }
  return bytes;
}

void make_room(uint64_t held, uint64_t before, const std::string& path,
               uint64_t& max_mem) {
  // Buffers take no more than what was there before them.
  held = std::max(held, before - std::min(before, kLeastBuffers));
  if (held <= kFree) return;
  held -= kFree;
  const uint64_t limit = std::max(max_mem, tree_memory::limit());
  if (limit >= held && limit - held >= kLeastBuffers) {
    max_mem = std::min(max_mem, limit - held);
    return;
  }
  refuse(held + kFree, path, limit);
}

void refuse(uint64_t held, const std::string& path, uint64_t limit) {
  const uint64_t counted = held - std::min(held, kFree) + 2 * kLeastBuffers;
  throw resource_error({path, {}},
                       "the headers of both sides and the plan take {} of "
                       "memory, the limit is {}",
                       text::iec_size(held), text::iec_size(limit))
      .with_hint(fmt::format("--max-mem {}MiB is enough",
                             (counted + kMiB - 1) / kMiB));
}

uint64_t piece_count(const Catalog& source, const Catalog& target) {
  uint64_t pieces = 0;
  for (const Catalog* catalog : {&source, &target})
    for (const Tensor& tensor : catalog->tensors)
      pieces += tensor.pieces.size();
  return pieces;
}

}  // namespace ckpt::reshard
