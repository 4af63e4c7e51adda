// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/parts.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

const std::string& path_of(const Catalog& catalog, const Part& part) {
  return catalog.files[part.extent.file].path;
}

bool has_elements(const Part& part) {
  return std::ranges::find(part.shape, 0u) == part.shape.end();
}

void check_dtype(const Catalog& catalog, const std::string& name,
                 const Part& part, DType expected, const Part& first) {
  if (part.dtype == expected) return;
  throw input_error({path_of(catalog, part), name}, "{}, but {} in {}",
                    ckpt::name(part.dtype), ckpt::name(expected),
                    short_path(path_of(catalog, first)));
}

// The dimensions from `from` on must agree.
void check_shape(const Catalog& catalog, const std::string& name,
                 const Part& part, const Part& first, size_t from) {
  const Shape &a = part.shape, &b = first.shape;
  if (a.size() == b.size() &&
      std::equal(a.begin() + std::min(from, a.size()), a.end(),
                 b.begin() + std::min(from, b.size())))
    return;
  throw input_error({path_of(catalog, part), name}, "shape {}, but {} in {}",
                    to_string(a), to_string(b),
                    short_path(path_of(catalog, first)));
}

Local join_whole(const Catalog& catalog, const std::string& name,
                 const std::vector<const Part*>& parts) {
  const Part& first = *parts.front();
  Local local{first.dtype, first.shape, {}};
  const Rows all{0, first.shape.empty() ? 1 : first.shape[0]};
  for (const Part* part : parts) {
    check_dtype(catalog, name, *part, first.dtype, first);
    check_shape(catalog, name, *part, first, 0);
    if (has_elements(*part)) local.held.push_back({part, all});
  }
  return local;
}

// Checks that each rank has the rows that torch.chunk gives for the total.
void check_chunks(const Catalog& catalog, const std::string& name,
                  const std::vector<const Part*>& parts, uint32_t dp,
                  const Local& local) {
  const uint64_t total = local.shape[0];
  std::vector<uint64_t> rows(dp, 0);
  for (const auto& held : local.held) rows[held.part->dp] = held.rows.count();
  for (uint32_t rank = 0; rank < dp; ++rank) {
    const uint64_t expected = cuts::chunk(total, dp, rank).count();
    if (rows[rank] == expected) continue;
    const auto part = std::ranges::find(parts, rank, &Part::dp);
    const Part& about = part == parts.end() ? *parts.front() : **part;
    throw input_error({path_of(catalog, about), name},
                      "data-parallel rank {} holds {} rows; {} rows over {} "
                      "ranks give it {}",
                      rank, rows[rank], total, dp, expected)
        .with_hint("a file is missing or belongs to another checkpoint");
  }
}

Local join_rows(const Catalog& catalog, const std::string& name,
                const std::vector<const Part*>& parts, uint32_t dp) {
  const auto first = std::ranges::find_if(
      parts, [](const Part* part) { return has_elements(*part); });
  if (first == parts.end())
    return {parts.front()->dtype, parts.front()->shape, {}};
  Local local{(*first)->dtype, (*first)->shape, {}};
  if (local.shape.empty())
    throw input_error({path_of(catalog, **first), name},
                      "no dimension that data-parallel ranks could share");
  local.shape[0] = 0;
  local.held.reserve(parts.size());
  for (const Part* part : parts) {
    if (!has_elements(*part)) continue;
    check_dtype(catalog, name, *part, local.dtype, **first);
    check_shape(catalog, name, *part, **first, 1);
    const auto end = checked_add(local.shape[0], part->shape[0]);
    if (!end)
      throw input_error({path_of(catalog, *part), name}, "too many rows");
    local.held.push_back({part, {local.shape[0], *end}});
    local.shape[0] = *end;
  }
  check_chunks(catalog, name, parts, dp, local);
  return local;
}

Local join_flat(const Catalog& catalog, const std::string& name,
                const std::vector<const Part*>& parts, const Shape& shape) {
  const auto total = element_count(shape);
  const Part& first = *parts.front();
  Local local{first.dtype, shape, {}};
  uint64_t at = 0;
  local.held.reserve(parts.size());
  for (const Part* part : parts) {
    check_dtype(catalog, name, *part, first.dtype, first);
    if (part->shape.size() != 1 || !part->extent.strides.empty())
      throw input_error({path_of(catalog, *part), name},
                        "shape {}, expected a slice of one dimension",
                        to_string(part->shape));
    const auto end = checked_add(at, part->shape[0]);
    if (!end || !total || *end > *total)
      throw input_error({path_of(catalog, *part), name},
                        "the ranks' slices hold more than the {} elements of "
                        "{}",
                        total.value_or(0), to_string(shape));
    if (*end != at) local.held.push_back({part, {at, *end}});
    at = *end;
  }
  if (!total || at != *total)
    throw input_error({path_of(catalog, first), name},
                      "the ranks' slices hold {} of the {} elements of {}", at,
                      total.value_or(0), to_string(shape));
  return local;
}

void check_ranks(const Catalog& catalog, const std::vector<Local>& ranks,
                 const std::string& name) {
  const Local& first = ranks.front();
  for (size_t t = 1; t < ranks.size(); ++t) {
    const Local& rank = ranks[t];
    if (rank.shape == first.shape && rank.dtype == first.dtype) continue;
    const std::string where =
        rank.held.empty() ? "" : path_of(catalog, *rank.held.front().part);
    throw input_error({where, name},
                      "tensor-parallel rank {} holds {} {}, rank 0 holds {} {}",
                      t, ckpt::name(rank.dtype), to_string(rank.shape),
                      ckpt::name(first.dtype), to_string(first.shape))
        .with_hint("a file belongs to another checkpoint");
  }
}

void add_pieces(const Local& local, const TpRule& rule, uint32_t tp,
                uint32_t rank, Tensor& tensor) {
  const uint64_t element = element_size(tensor.dtype);
  for (const auto& [part, rows] : local.held) {
    for (cuts::Part& placed : place(tensor.shape, rule, tp, rank, rows)) {
      Piece piece{.box = std::move(placed.box),
                  .flat = std::nullopt,
                  .extent = {},
                  .transform = part->transform};
      piece.extent = sub_extent(part->extent, element, part->shape, placed.at,
                                piece.box.shape);
      tensor.pieces.push_back(std::move(piece));
    }
  }
}

void add_flat_pieces(const Local& local, const TpRule& rule, uint32_t tp,
                     uint32_t rank, Tensor& tensor) {
  const Rows all{0, local.shape.empty() ? 1 : local.shape[0]};
  const auto placed = place(tensor.shape, rule, tp, rank, all);
  if (placed.size() != 1)
    throw unfaithful_error({{}, tensor.name},
                           "flat slices of a part that is split in {} groups",
                           placed.size());
  for (const auto& [part, range] : local.held)
    tensor.pieces.push_back({.box = placed.front().box,
                             .flat = FlatRange{range.begin, range.end},
                             .extent = part->extent,
                             .transform = part->transform});
}

}  // namespace

std::string short_path(const std::string& path) {
  const std::string tp = io::parent(path);
  return io::join(io::join(io::base_name(io::parent(tp)), io::base_name(tp)),
                  io::base_name(path));
}

Extent sub_extent(const Extent& extent, uint64_t element, const Shape& stored,
                  const Dims& at, const Shape& size) {
  Extent sub = extent;
  if (sub.strides.empty()) {
    sub.strides = row_major_strides(stored);
    for (uint64_t& stride : sub.strides) stride *= element;
  }
  for (size_t d = 0; d < at.size(); ++d) sub.offset += at[d] * sub.strides[d];
  // The stride of a dimension of size 1 does not matter.
  const Dims packed = row_major_strides(size);
  bool contiguous = true;
  for (size_t d = 0; d < size.size(); ++d)
    contiguous =
        contiguous && (size[d] == 1 || sub.strides[d] == packed[d] * element);
  if (contiguous) sub.strides.clear();
  return sub;
}

Local join_dp(const Catalog& catalog, const std::string& name,
              const std::vector<const Part*>& parts, uint32_t dp,
              Sharding sharding, const Shape& shape) {
  if (sharding == Sharding::kFlat)
    return join_flat(catalog, name, parts, shape);
  if (sharding == Sharding::kWhole || dp == 1 || parts.front()->shape.empty())
    return join_whole(catalog, name, parts);
  return join_rows(catalog, name, parts, dp);
}

void join_tp(const Catalog& catalog, const std::vector<Local>& ranks,
             const TpRule& rule, Sharding sharding, Tensor& tensor) {
  const auto tp = static_cast<uint32_t>(ranks.size());
  const Local& first = ranks.front();
  check_ranks(catalog, ranks, tensor.name);
  if (tp > 1 && rule.state == TpRule::State::kSplit &&
      (rule.dim >= first.shape.size() ||
       first.shape[rule.dim] % rule.groups != 0))
    throw unfaithful_error(
        {catalog.path, tensor.name},
        "{} cannot be one of {} parts of dimension {} in {} groups",
        to_string(first.shape), tp, rule.dim, rule.groups);
  const auto global = tp_global(first.shape, rule, tp);
  if (!global || !byte_size(first.dtype, *global))
    throw input_error({catalog.path, tensor.name},
                      "{} times {} ranks is too large", to_string(first.shape),
                      tp);
  tensor.dtype = first.dtype;
  tensor.shape = *global;
  tensor.tp = rule;
  size_t pieces = 0;
  for (const Local& local : ranks) pieces += local.held.size();
  tensor.pieces.reserve(pieces);
  for (uint32_t rank = 0; rank < tp; ++rank) {
    if (sharding == Sharding::kFlat)
      add_flat_pieces(ranks[rank], rule, tp, rank, tensor);
    else
      add_pieces(ranks[rank], rule, tp, rank, tensor);
  }
}

}  // namespace ckpt::fairseq2
