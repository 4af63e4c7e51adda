// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/same_storages.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/io/file.h"

namespace ckpt::deepspeed {
namespace {

// Writes the checksum at `at` into the literal that covers it.
void patch(std::vector<Literal>& literals, uint64_t at, uint32_t crc) {
  auto literal = std::ranges::upper_bound(literals, at, {}, &Literal::offset);
  if (literal == literals.begin())
    throw bug_error({}, "no literal covers a checksum");
  --literal;
  const uint64_t inside = at - literal->offset;
  if (inside + 4 > literal->bytes.size())
    throw bug_error({}, "no literal covers a checksum");
  for (size_t b = 0; b < 4; ++b)
    literal->bytes[inside + b] = static_cast<char>(crc >> (8 * b));
}

}  // namespace

SameStorages::SameStorages(const torch::Container& container,
                           const Catalog& opened,
                           std::span<const uint32_t> without)
    : container_(container), opened_(opened) {
  const auto& all = container.storages.all;
  for (uint32_t s = 0; s < all.size(); ++s) {
    if (std::ranges::find(without, s) != without.end()) continue;
    if (container.kind != torch::ContainerKind::kZip ||
        container.storages.big_endian || !all[s].dtype ||
        element_size(*all[s].dtype) == 0 ||
        all[s].declared % element_size(*all[s].dtype) != 0 ||
        opened.files[all[s].file].codec != Codec::kRaw)
      throw unfaithful_error({container.path, {}},
                             "is not as torch.save of today writes it: its "
                             "tensors can't be carried")
          .with_hint("torch.save what torch.load gives, and try again");
    kept_.push_back(s);
  }
}

void SameStorages::add_slots(
    pickle::Document& document, std::vector<torch::TensorSlot>& slots,
    std::unordered_map<pickle::Id, pickle::Id>& substitutes) {
  first_ = slots.size();
  std::unordered_map<uint32_t, pickle::Id> nodes;
  for (const uint32_t s : kept_) {
    const torch::Storage& storage = container_.storages.all[s];
    nodes.emplace(s, torch::add_storage_placeholder(document, slots.size()));
    slots.push_back(
        {.dtype = *storage.dtype,
         .shape = {storage.declared / element_size(*storage.dtype)}});
  }
  for (const auto& [node, use] : container_.storages.uses)
    if (const auto found = nodes.find(use.storage); found != nodes.end())
      substitutes[node] = found->second;
}

uint32_t SameStorages::crc_of(const torch::Storage& storage) const {
  for (const StoredCrc& crc : opened_.crcs)
    if (crc.file == storage.file && crc.begin == storage.offset &&
        crc.end == storage.offset + storage.declared)
      return crc.crc32;
  // Written without checksums.
  constexpr uint64_t kBlock = 1 << 20;
  const io::Handle file =
      io::Handle::open_read(opened_.files[storage.file].path);
  uint32_t crc = 0;
  for (uint64_t at = 0; at < storage.declared; at += kBlock) {
    const std::string block = file.read_string(
        storage.offset + at, std::min(kBlock, storage.declared - at));
    crc = crc32(crc, std::as_bytes(std::span(block)));
  }
  return crc;
}

void SameStorages::carry(torch::FilePlan& plan, uint32_t source_file,
                         std::span<const Use> uses) const {
  std::vector<LateCrc> late = plan.file.crcs.get();
  std::vector<Literal> literals = plan.file.literals.get();
  for (size_t i = 0; i < kept_.size(); ++i) {
    const torch::Storage& storage = container_.storages.all[kept_[i]];
    if (storage.declared == 0) continue;
    const uint64_t to = plan.data_offsets[first_ + i];
    const auto record = std::ranges::find(late, to, &LateCrc::begin);
    if (record == late.end())
      throw bug_error({container_.path, {}}, "a storage without a checksum");
    const uint32_t crc = crc_of(storage);
    for (const uint64_t at : record->at) patch(literals, at, crc);
    late.erase(record);
    uint64_t at = storage.offset;
    const uint64_t end = storage.offset + storage.declared;
    const auto up_to = [&](uint64_t stop) {
      if (stop > at)
        plan.file.carried.push_back({.offset = to + (at - storage.offset),
                                     .size = stop - at,
                                     .source_file = source_file,
                                     .source_offset = at});
    };
    for (const Use& use : uses) {
      if (use.begin < at || use.end > end) continue;
      up_to(use.begin);
      at = use.end;
    }
    up_to(end);
  }
  std::ranges::sort(plan.file.carried, {}, &CarriedRange::offset);
  plan.file.literals = std::move(literals);
  plan.file.crcs = std::move(late);
}

uint64_t SameStorages::moved(const torch::FilePlan& plan,
                             uint64_t offset) const {
  for (size_t i = 0; i < kept_.size(); ++i) {
    const torch::Storage& storage = container_.storages.all[kept_[i]];
    if (offset >= storage.offset && offset < storage.offset + storage.declared)
      return plan.data_offsets[first_ + i] + (offset - storage.offset);
  }
  throw bug_error({container_.path, {}}, "a tensor outside of all storages");
}

}  // namespace ckpt::deepspeed
