// SPDX-License-Identifier: Apache-2.0
// One process's part of a global tensor, and entries of grids of objects
// (megatron-core: dist_checkpointing/mapping.py).
#include <algorithm>

#include "ckpt/mcore.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::mcore {
namespace {

Error wrong(const ShardedTensor& tensor, std::string problem) {
  return usage_error({{}, tensor.key}, "{}", problem);
}

void check_data(const ShardedTensor& tensor) {
  const TensorData& data = *tensor.data;
  if (data.dtype != tensor.dtype)
    throw wrong(tensor, fmt::format("is {}, its data {}", name(tensor.dtype),
                                    name(data.dtype)));
  const bool whole = !tensor.flattened_range;
  if (whole && data.shape != tensor.local_shape)
    throw wrong(tensor, fmt::format("has the local shape {}, its data {}",
                                    to_string(tensor.local_shape),
                                    to_string(data.shape)));
  if (byte_size(data.dtype, data.shape) != data.bytes.size())
    throw wrong(tensor,
                fmt::format("{} {} needs {} bytes, its data has {}",
                            name(data.dtype), to_string(data.shape),
                            byte_size(data.dtype, data.shape).value_or(0),
                            data.bytes.size()));
}

// A program may set each field: what follows indexes by one of another.
void check_ranks(const ShardedTensor& tensor) {
  if (tensor.global_shape.size() != tensor.global_offset.size())
    throw wrong(tensor, fmt::format("has the global shape {} and the offset {}",
                                    to_string(tensor.global_shape),
                                    to_string(tensor.global_offset)));
  const size_t rank = tensor.global_shape.size();
  if (tensor.prepended_axes > rank ||
      tensor.local_shape.size() != rank - tensor.prepended_axes)
    throw wrong(
        tensor,
        fmt::format("has the local shape {} and {} prepended axes, but "
                    "the global shape {}",
                    to_string(tensor.local_shape), tensor.prepended_axes,
                    to_string(tensor.global_shape)));
  const auto& cuts = tensor.axis_fragmentations;
  if (cuts && cuts->size() != rank)
    throw wrong(tensor,
                fmt::format("has a grid of {} parts, but the global "
                            "shape {}",
                            to_string(*cuts), to_string(tensor.global_shape)));
}

void check_range(const ShardedTensor& tensor) {
  const FlatRange& range = *tensor.flattened_range;
  const uint64_t count = element_count(tensor.local_shape).value_or(0);
  if (range.begin > range.end || range.end > count)
    throw wrong(tensor, fmt::format("elements {} to {} of a local tensor that "
                                    "has {}",
                                    range.begin, range.end, count));
  if (tensor.data && tensor.data->shape != Shape{range.end - range.begin})
    throw wrong(tensor,
                fmt::format("elements {} to {} are one dimension of {}, its "
                            "data has the shape {}",
                            range.begin, range.end, range.end - range.begin,
                            to_string(tensor.data->shape)));
}

// x * to / from, which must be exact.
uint64_t scaled(const ShardedTensor& tensor, uint64_t x, uint64_t to,
                uint64_t from) {
  const auto product = checked_mul(x, to);
  if (!product || *product % from != 0)
    throw wrong(tensor, fmt::format("{} does not scale by {}/{}", x, to, from));
  return *product / from;
}

// Elements [start, start + length) along an axis of row-major data.
TensorPtr narrowed(const TensorData& data, size_t axis, uint64_t start,
                   uint64_t length) {
  auto part = std::make_shared<TensorData>();
  part->dtype = data.dtype;
  part->shape = data.shape;
  part->shape[axis] = length;
  uint64_t row = element_size(data.dtype);
  for (size_t d = axis + 1; d < data.shape.size(); ++d) row *= data.shape[d];
  uint64_t rows = 1;
  for (size_t d = 0; d < axis; ++d) rows *= data.shape[d];
  for (uint64_t r = 0; r < rows; ++r) {
    const auto from =
        data.bytes.begin() +
        static_cast<std::ptrdiff_t>((r * data.shape[axis] + start) * row);
    part->bytes.insert(part->bytes.end(), from,
                       from + static_cast<std::ptrdiff_t>(length * row));
  }
  return part;
}

std::vector<ShardedTensor> narrow_flat(const ShardedTensor& tensor,
                                       ShardedTensor whole, size_t axis,
                                       uint64_t start, uint64_t length) {
  if (axis != 0)
    throw wrong(tensor, "is flattened, and narrowed along axis 0 only");
  uint64_t row = 1;
  for (size_t d = 1; d < tensor.local_shape.size(); ++d)
    row *= tensor.local_shape[d];
  const FlatRange& range = *tensor.flattened_range;
  const uint64_t begin = std::max(range.begin, start * row);
  const uint64_t end = std::min(range.end, (start + length) * row);
  if (begin >= end) return {};
  whole.flattened_range = {begin - start * row, end - start * row};
  if (tensor.data)
    whole.data = narrowed(*tensor.data, 0, begin - range.begin, end - begin);
  return {std::move(whole)};
}

ShardedTensor place(std::string key, DType dtype, const Shape& local,
                    const std::vector<RankOffset>& offsets,
                    const ShardedOptions& options) {
  ShardedTensor tensor;
  tensor.key = std::move(key);
  tensor.dtype = dtype;
  tensor.local_shape = local;
  tensor.replica = options.replica;
  tensor.prepended_axes = options.prepended_axes;
  tensor.allow_shape_mismatch = options.allow_shape_mismatch;
  const size_t rank = local.size() + options.prepended_axes;
  if (rank > kMaxRank) throw wrong(tensor, fmt::format("has {} axes", rank));
  tensor.global_shape = Shape(options.prepended_axes, 1);
  for (const uint64_t extent : local) tensor.global_shape.push_back(extent);
  tensor.global_offset = Dims(rank, 0);
  Dims cuts(rank, 1);
  for (const auto& [axis, index, count] : offsets) {
    if (axis >= rank || count == 0 || index >= count)
      throw wrong(tensor, fmt::format("there is no part {} of {} along axis {} "
                                      "of {}",
                                      index, count, axis, rank));
    const uint64_t part = axis < options.prepended_axes
                              ? 1
                              : local[axis - options.prepended_axes];
    const auto extent = checked_mul(count, part);
    if (!extent)
      throw wrong(tensor,
                  fmt::format("{} parts of {} are too many", count, part));
    tensor.global_shape[axis] = *extent;
    tensor.global_offset[axis] = index * part;
    cuts[axis] = count;
  }
  tensor.axis_fragmentations = cuts;
  return tensor;
}

const TensorData& data_of(const std::string& key, const TensorPtr& data) {
  if (!data) throw usage_error({{}, key}, "has no data");
  return *data;
}

}  // namespace

bool is_main_replica(const ReplicaId& replica) {
  return std::ranges::all_of(replica, [](uint64_t n) { return n == 0; });
}

void ShardedTensor::validate() const {
  if (data) check_data(*this);
  check_ranks(*this);
  if (axis_fragmentations) {
    for (size_t d = 0; d < local_shape.size(); ++d) {
      const uint64_t offset = global_offset[prepended_axes + d];
      if (local_shape[d] != 0 && offset % local_shape[d] != 0)
        throw wrong(*this, fmt::format("begins at {}, which its local extent "
                                       "{} does not divide",
                                       offset, local_shape[d]));
    }
  }
  if (flattened_range) check_range(*this);
}

Box ShardedTensor::box() const {
  Box box{global_offset, Shape(prepended_axes, 1)};
  for (const uint64_t extent : local_shape) box.shape.push_back(extent);
  return box;
}

Dims ShardedTensor::chunk_offset() const {
  check_ranks(*this);
  Dims chunk = global_offset;
  for (size_t d = 0; d < local_shape.size(); ++d) {
    uint64_t& at = chunk[prepended_axes + d];
    if (local_shape[d] == 0 || at % local_shape[d] != 0)
      throw wrong(*this, fmt::format("begins at {}, which its local extent {} "
                                     "does not divide",
                                     at, local_shape[d]));
    at /= local_shape[d];
  }
  return chunk;
}

Dims ShardedTensor::max_allowed_chunks() const {
  check_ranks(*this);
  if (!axis_fragmentations)
    throw wrong(*this, "has parts of any size, and no grid of them");
  Dims chunks = global_shape;
  for (size_t d = 0; d < chunks.size(); ++d) {
    const uint64_t cuts = (*axis_fragmentations)[d];
    if (cuts == 0 || (!allow_shape_mismatch && chunks[d] % cuts != 0))
      throw wrong(*this, fmt::format("has {} elements along axis {}, which {} "
                                     "parts don't divide",
                                     chunks[d], d, cuts));
    chunks[d] /= cuts;
  }
  return chunks;
}

std::vector<ShardedTensor> ShardedTensor::narrow(size_t axis, uint64_t start,
                                                 uint64_t length) const {
  validate();
  if (axis >= local_shape.size() || start > local_shape[axis] ||
      length > local_shape[axis] - start)
    throw wrong(*this, fmt::format("has no elements {} to {} along axis {} of "
                                   "the local shape {}",
                                   start, start + length, axis,
                                   to_string(local_shape)));
  const size_t global_axis = axis + prepended_axes;
  const uint64_t local = local_shape[axis];
  if (local == 0 || global_shape[global_axis] % local != 0 ||
      global_offset[global_axis] % local != 0)
    throw wrong(*this, "is not part of a regular grid: it can't be narrowed");
  ShardedTensor part = *this;
  part.local_shape[axis] = length;
  part.global_shape[global_axis] =
      scaled(*this, global_shape[global_axis], length, local);
  part.global_offset[global_axis] =
      scaled(*this, global_offset[global_axis], length, local);
  if (flattened_range)
    return narrow_flat(*this, std::move(part), axis, start, length);
  if (data) part.data = narrowed(*data, axis, start, length);
  return {std::move(part)};
}

ShardedTensor ShardedTensor::without_data() const {
  ShardedTensor bare = *this;
  bare.data = nullptr;
  return bare;
}

void ShardedTensor::init_data() {
  if (data) return;
  validate();
  const Shape shape = flattened_range
                          ? Shape{flattened_range->end - flattened_range->begin}
                          : local_shape;
  const auto bytes = byte_size(dtype, shape);
  if (!bytes) throw wrong(*this, "is larger than 64 bits can count");
  try {
    data = std::make_shared<TensorData>(
        TensorData{dtype, shape, std::vector<std::byte>(*bytes)});
  } catch (const std::exception&) {  // bad_alloc, length_error
    throw resource_error({{}, key}, "there is no memory for {} bytes of {}",
                         *bytes, to_string(shape));
  }
}

ShardedTensor from_rank_offsets(std::string key, TensorPtr data,
                                const std::vector<RankOffset>& offsets,
                                const ShardedOptions& options) {
  const TensorData& held = data_of(key, data);
  ShardedTensor tensor =
      place(std::move(key), held.dtype, held.shape, offsets, options);
  tensor.data = std::move(data);
  tensor.validate();
  return tensor;
}

ShardedTensor from_rank_offsets_flat(std::string key, TensorPtr data,
                                     const Shape& local_shape, FlatRange range,
                                     const std::vector<RankOffset>& offsets,
                                     const ShardedOptions& options) {
  const TensorData& held = data_of(key, data);
  ShardedTensor tensor =
      place(std::move(key), held.dtype, local_shape, offsets, options);
  tensor.data = std::move(data);
  tensor.flattened_range = range;
  tensor.validate();
  return tensor;
}

std::string unique_key(const ShardedObject& object) {
  if (object.at.size() != object.grid.size())
    throw usage_error({{}, object.key}, "entry {} of a grid of {}",
                      to_string(object.at), to_string(object.grid));
  return megatron::object_key(object.key, object.at, object.grid);
}

ShardedObject empty_from_unique_key(const std::string& name,
                                    ReplicaId replica) {
  const auto key = megatron::parse_object_key(name);
  if (!key)
    throw usage_error({{}, name}, "is not a key of a grid of objects")
        .with_hint("KEY/shard_AT_GRID, as in rng_state/shard_0.1_2.2");
  ShardedObject object;
  object.key = std::string(key->key);
  object.at = Dims(key->offset);
  object.grid = Dims(key->grid);
  object.replica = std::move(replica);
  return object;
}

}  // namespace ckpt::mcore
