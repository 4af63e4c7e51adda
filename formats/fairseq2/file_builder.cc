// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/file_builder.h"

#include <fmt/format.h>

#include "formats/fairseq2/parts.h"
#include "formats/fairseq2/scan.h"

namespace ckpt::fairseq2 {

std::string Coordinates::path() const {
  return fmt::format("{}/{}/{}.pt", numbered("pp_", pp), numbered("tp_", tp),
                     numbered("sdp_", dp));
}

uint64_t FileBuilder::add_slot(const Tensor& tensor, Shape shape) {
  slots_.push_back({.dtype = tensor.dtype,
                    .shape = std::move(shape),
                    .requires_grad = tensor.requires_grad});
  return slots_.size() - 1;
}

uint64_t FileBuilder::add_rows(const Target& target, size_t index, bool whole) {
  const Tensor& tensor = target.catalog.tensors[index];
  Shape shape = tp_local(tensor.shape, tensor.tp, at_.grid.tp);
  Rows rows{0, shape.empty() ? 1 : shape[0]};
  if (!whole && !shape.empty()) {
    rows = cuts::chunk(shape[0], at_.grid.dp, at_.dp);
    shape[0] = rows.count();
  }
  const uint64_t slot = add_slot(tensor, shape);
  if (element_count(shape) == 0) return slot;
  for (cuts::Part& placed :
       place(tensor.shape, tensor.tp, at_.grid.tp, at_.tp, rows)) {
    Piece piece;
    piece.box = std::move(placed.box);
    pending_.push_back({index, slot, std::move(piece), std::move(placed.at)});
  }
  return slot;
}

uint64_t FileBuilder::add_flat(const Target& target, size_t index,
                               const FlatRange& range) {
  const Tensor& tensor = target.catalog.tensors[index];
  const Shape local = tp_local(tensor.shape, tensor.tp, at_.grid.tp);
  const uint64_t slot = add_slot(tensor, {range.end - range.begin});
  const Rows rows{0, local.empty() ? 1 : local[0]};
  Piece piece;
  piece.box =
      place(tensor.shape, tensor.tp, at_.grid.tp, at_.tp, rows).front().box;
  piece.flat = range;
  pending_.push_back({index, slot, std::move(piece), {}});
  return slot;
}

void FileBuilder::finish(Target& target, pickle::Id root,
                         const std::string& path) {
  // fairseq2 gives torch an open file, so torch does not know its name.
  torch::FilePlan plan = torch::plan_file(document, root, slots_, "archive");
  plan.file.path = path;
  const auto file = static_cast<uint32_t>(target.files.size());
  for (Pending& pending : pending_) {
    Tensor& tensor = target.catalog.tensors[pending.tensor];
    Extent extent{
        .offset = plan.data_offsets[pending.slot], .strides = {}, .file = file};
    if (!pending.piece.flat)
      extent = sub_extent(extent, element_size(tensor.dtype),
                          slots_[pending.slot].shape, pending.at,
                          pending.piece.box.shape);
    pending.piece.extent = std::move(extent);
    tensor.pieces.push_back(std::move(pending.piece));
  }
  target.catalog.files.push_back({.path = path, .size = plan.file.size});
  target.files.push_back(std::move(plan.file));
}

}  // namespace ckpt::fairseq2
