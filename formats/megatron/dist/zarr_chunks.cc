// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/zarr_chunks.h"

#include "ckpt/error.h"
#include "containers/zarr/array.h"
#include "containers/zarr/dtypes.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

// The limit of Linux file systems.
constexpr size_t kMaxName = 255;

// zarr has unsigned integers of any size; Megatron's table has only bytes.
bool has_type(DType dtype) {
  return !zarr::type_name(dtype).empty() && dtype != DType::u16 &&
         dtype != DType::u32 && dtype != DType::u64;
}

Dims by_rule(const Tensor& tensor, const Key& key, const DistSplit& split) {
  Dims chunks = tensor.shape;
  size_t d = 0;
  if (key.layer_axis && d < chunks.size()) chunks[d++] = 1;
  if (key.expert_axis && d < chunks.size()) chunks[d] = 1;
  const TpRule& rule = tensor.tp;
  if (rule.state == State::kSplit)
    chunks[rule.dim] /= rule.groups * (key.is_expert() ? split.etp : split.tp);
  return chunks;
}

// The size of the source's boxes, if they are a grid without replicas.
std::optional<Dims> by_boxes(const Tensor& tensor) {
  if (tensor.pieces.size() < 2) return std::nullopt;
  const Dims& chunks = tensor.pieces[0].box.shape;
  for (const uint64_t extent : chunks)
    if (extent == 0) return std::nullopt;
  const Dims grid = zarr::grid_of(tensor.shape, chunks);
  if (element_count(grid) != tensor.pieces.size()) return std::nullopt;
  for (size_t d = 0; d < chunks.size(); ++d)
    if (tensor.shape[d] % chunks[d] != 0) return std::nullopt;
  for (const Piece& piece : tensor.pieces) {
    if (piece.flat || piece.box.shape != chunks) return std::nullopt;
    for (size_t d = 0; d < chunks.size(); ++d)
      if (piece.box.offset[d] % chunks[d] != 0) return std::nullopt;
  }
  return chunks;
}

}  // namespace

void check_zarr_tensor(const Tensor& tensor) {
  const ckpt::Where where{{}, text::printable(tensor.name)};
  const std::string leave =
      fmt::format("leave it out (--exclude '{}'), or write megatron_torch_dist",
                  text::printable(tensor.name));
  if (tensor.shape.empty())
    throw unfaithful_error(where, "0-d tensors have no form in Megatron's zarr")
        .with_hint(leave);
  if (volume(Box::whole(tensor.shape)) == 0)
    throw unfaithful_error(
        where, "empty tensors such as {} have no form in Megatron's zarr",
        to_string(tensor.shape))
        .with_hint(leave);
  if (!has_type(tensor.dtype))
    throw unfaithful_error(where, "Megatron's zarr has no dtype {}",
                           name(tensor.dtype))
        .with_hint(leave + ", or cast with --dtype");
  if (tensor.name.size() > kMaxName ||
      tensor.name.find('/') != std::string::npos ||
      tensor.name.find('\0') != std::string::npos || tensor.name.empty() ||
      tensor.name == "." || tensor.name == "..")
    throw unfaithful_error(
        where, "a name of {} bytes that can't be a directory's{}",
        tensor.name.size(), tensor.name.size() > kMaxName ? "" : ": it has a /")
        .with_hint(leave + ", or --rename it");
  for (const std::string_view own :
       {"metadata.json", "common.pt", ".metadata", ".zarray", ".zattrs",
        ".zgroup", ".zmetadata", "zarr.json"})
    if (tensor.name == own)
      throw unfaithful_error(where, "{} is a file of the format's own", own)
          .with_hint(leave + ", or --rename it");
}

Dims zarr_chunks(const Tensor& tensor, const Key& key, const DistSplit& split) {
  if (has_rule(tensor, key)) return by_rule(tensor, key, split);
  return by_boxes(tensor).value_or(tensor.shape);
}

}  // namespace ckpt::megatron
