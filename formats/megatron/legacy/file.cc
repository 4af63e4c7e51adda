// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/file.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/same_lists.h"

namespace ckpt::megatron {

uint64_t LegacyFile::add_slot(DType dtype, Shape shape) {
  slots_.push_back({.dtype = dtype, .shape = std::move(shape)});
  return slots_.size() - 1;
}

void LegacyFile::add_pieces(const Tensor& tensor, size_t index,
                            const TpRule& rule, uint64_t slot, uint64_t ranks,
                            uint64_t file_slot, uint64_t at) {
  if (rule.groups > 1 && rule.dim != 0 && ranks > 1)
    throw unfaithful_error({{}, tensor.name},
                           "split in {} groups along dimension {}: only rows "
                           "can be cut so",
                           rule.groups, rule.dim);
  const Dims strides = row_major_strides(part_shape(tensor.shape, rule, ranks));
  Groups groups;
  if (rule.state == TpRule::State::kSplit && ranks > 1)
    groups = mixers_.extents(parameter_of(tensor)).value_or(Groups());
  for (cuts::Part& cut : cut_boxes(tensor.shape, rule, slot, ranks, groups)) {
    Pending pending{.tensor = index, .slot = file_slot, .begin = at};
    for (size_t d = 0; d < strides.size(); ++d)
      pending.begin += cut.at[d] * strides[d];
    pending.count = volume(cut.box);
    pending.box = std::move(cut.box);
    if (pending.count != 0) pending_.push_back(std::move(pending));
  }
}

pickle::Id LegacyFile::add_part(const Tensor& tensor, size_t index,
                                const TpRule& rule, uint64_t slot,
                                uint64_t ranks) {
  const auto type = torch::torch_type(tensor.name, tensor.dtype, tensor.shape);
  if (type.dtype != tensor.dtype)
    throw unfaithful_error({{}, tensor.name}, "torch has no dtype {}",
                           name(tensor.dtype));
  const uint64_t file_slot =
      add_slot(tensor.dtype, part_shape(tensor.shape, rule, ranks));
  add_pieces(tensor, index, rule, slot, ranks, file_slot, 0);
  return torch::add_placeholder(document, file_slot);
}

LegacyFile::Flat LegacyFile::add_flat(DType dtype, uint64_t size) {
  const uint64_t slot = add_slot(dtype, {size});
  return {slot, torch::add_placeholder(document, slot)};
}

void LegacyFile::fill_flat(const Flat& flat, const Tensor& tensor, size_t index,
                           const TpRule& rule, uint64_t slot, uint64_t ranks,
                           uint64_t at) {
  add_pieces(tensor, index, rule, slot, ranks, flat.slot, at);
}

// Puts zeros where there is no piece.
void LegacyFile::add_gaps(const torch::FilePlan& plan, TargetFile& file) const {
  constexpr uint64_t kMostZeros = uint64_t{1} << 20;  // in one literal
  std::vector<std::pair<uint64_t, uint64_t>> filled;  // begin, end: bytes
  for (const Pending& pending : pending_) {
    const uint64_t item = element_size(slots_[pending.slot].dtype);
    const uint64_t begin =
        plan.data_offsets[pending.slot] + pending.begin * item;
    filled.emplace_back(begin, begin + pending.count * item);
  }
  std::ranges::sort(filled);
  std::vector<std::pair<uint64_t, uint64_t>> slots;
  for (size_t i = 0; i < slots_.size(); ++i)
    slots.emplace_back(plan.data_offsets[i],
                       plan.data_offsets[i] +
                           byte_size(slots_[i].dtype, slots_[i].shape).value());
  std::ranges::sort(slots);
  auto next = filled.begin();
  const auto add_zeros = [&](uint64_t begin, uint64_t end) {
    for (; begin < end; begin += std::min(kMostZeros, end - begin))
      file.literals.push_back(
          {begin, std::string(std::min(kMostZeros, end - begin), '\0')});
  };
  for (const auto& [begin, end] : slots) {
    uint64_t at = begin;
    for (; next != filled.end() && next->first < end; ++next) {
      add_zeros(at, next->first);
      at = next->second;
    }
    add_zeros(at, end);
  }
}

void LegacyFile::finish(Target& target, pickle::Id root,
                        const std::string& path) {
  torch::FilePlan plan =
      torch::plan_file(document, root, slots_, torch::archive_root_of(path));
  plan.file.path = path;
  add_gaps(plan, plan.file);
  std::ranges::sort(plan.file.literals.own(), {}, &Literal::offset);
  torch::share_lists(plan.file);
  const auto file = static_cast<uint32_t>(target.files.size());
  for (Pending& pending : pending_) {
    Tensor& tensor = target.catalog.tensors[pending.tensor];
    Piece piece;
    piece.box = std::move(pending.box);
    piece.extent.file = file;
    piece.extent.offset = plan.data_offsets[pending.slot] +
                          pending.begin * element_size(tensor.dtype);
    tensor.pieces.push_back(std::move(piece));
  }
  target.catalog.files.push_back({.path = path, .size = plan.file.size});
  target.files.push_back(std::move(plan.file));
}

}  // namespace ckpt::megatron
