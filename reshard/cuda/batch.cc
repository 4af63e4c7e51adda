// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/batch.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "reshard/cuda/cast.h"
#include "reshard/cuda/tile.h"

namespace ckpt::cuda {
namespace {

// A transpose of fewer elements than this in either direction leaves most of a
// tile empty; copying single elements is then as good.
constexpr uint32_t kLeastEdge = 8;

struct Dim {
  uint64_t size = 1;
  uint64_t in = 0;
  uint64_t out = 0;
};

// Drops dimensions of one element and joins those that are contiguous in both
// buffers.
std::vector<Dim> collapse(uint32_t dims, const uint32_t* shape,
                          const uint64_t* in, const uint64_t* out) {
  if (dims > kDims) throw std::invalid_argument("too many dimensions");
  std::vector<Dim> result;
  for (uint32_t d = 0; d < dims; ++d) {
    const Dim next{shape[d], in[d], out[d]};
    if (next.size == 1) continue;
    if (!result.empty() && result.back().in == next.size * next.in &&
        result.back().out == next.size * next.out)
      result.back() = {result.back().size * next.size, next.in, next.out};
    else
      result.push_back(next);
  }
  return result;
}

uint32_t checked(uint64_t count) {
  if (count > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    throw std::invalid_argument("a block of too many elements: " +
                                std::to_string(count));
  return static_cast<uint32_t>(count);
}

uint64_t volume(const std::vector<Dim>& dims) {
  uint64_t volume = 1;
  for (const Dim& dim : dims) volume *= dim.size;
  return volume;
}

Nest nest_of(const std::vector<Dim>& dims) {
  Nest nest;
  for (const Dim& dim : dims) {
    nest.step[nest.dims].size = Divider(checked(dim.size));
    nest.step[nest.dims].in = dim.in;
    nest.step[nest.dims].out = dim.out;
    ++nest.dims;
  }
  return nest;
}

// The largest power of two, at most 16, that divides all of them.
uint64_t alignment(uint64_t bits) {
  return uint64_t{1} << std::countr_zero(bits | 16);
}

uint64_t in_bits(const std::vector<Dim>& dims) {
  uint64_t bits = 0;
  for (const Dim& dim : dims) bits |= dim.in;
  return bits;
}
uint64_t out_bits(const std::vector<Dim>& dims) {
  uint64_t bits = 0;
  for (const Dim& dim : dims) bits |= dim.out;
  return bits;
}

// The most aligned vectors that a run of `bytes` touches, if runs begin at `at`
// and at multiples of `strides` from there.
uint32_t slots_of(uint64_t at, uint64_t strides, uint64_t bytes) {
  const uint64_t skew =
      strides % 16 == 0 ? at % 16 : 16 - alignment(at | strides);
  return checked((skew + bytes + 15) / 16);
}

template <class Task>
struct Group {
  std::vector<Task> tasks;
  uint32_t units = 0;

  void add(Task task, uint64_t units_of_task) {
    if (units_of_task == 0) return;
    task.first_unit = units;
    units = checked(units + units_of_task);
    tasks.push_back(task);
  }
  void launch(Kernel kernel, uint32_t variant, Batch& batch) const {
    if (tasks.empty()) return;
    const size_t bytes = tasks.size() * sizeof(Task);
    const size_t at = (batch.blob.size() + 15) / 16 * 16;
    batch.blob.resize(at + bytes);
    std::copy_n(reinterpret_cast<const std::byte*>(tasks.data()), bytes,
                batch.blob.data() + at);
    batch.launches.push_back(
        {kernel, variant, at, static_cast<uint32_t>(tasks.size()), units});
  }
};

uint64_t units_of(uint64_t slots, uint32_t per_unit) {
  return (slots + per_unit - 1) / per_unit;
}

// The copies of one stage.
class Stage {
 public:
  void add(const CkptCudaCopy& copy) {
    std::vector<Dim> dims =
        collapse(copy.dims, copy.shape, copy.in_stride, copy.out_stride);
    if (volume(dims) == 0) return;
    if (copy.from != copy.to)
      add_cast(copy, std::move(dims));
    else
      add_copy(copy, std::move(dims));
  }
  void launch(Batch& batch) const {
    rows_.launch(Kernel::kRows, 0, batch);
    elements_.launch(Kernel::kElements, 0, batch);
    for (const auto& [element, group] : tiles_)
      group.launch(Kernel::kTile, element, batch);
    for (const auto& [pair, group] : casts_)
      group.launch(Kernel::kCast, pair, batch);
  }

 private:
  template <class Task>
  static Task task_for(const CkptCudaCopy& copy, const std::vector<Dim>& dims) {
    Task task;
    task.in = copy.in;
    task.out = copy.out;
    task.nest = nest_of(dims);
    task.in_buffer = copy.in_buffer;
    task.out_buffer = copy.out_buffer;
    return task;
  }

  void add_copy(const CkptCudaCopy& copy, std::vector<Dim> dims) {
    uint64_t run = copy.element;
    if (!dims.empty() && dims.back().in == run && dims.back().out == run) {
      run *= dims.back().size;
      dims.pop_back();
    }
    const uint64_t bits =
        copy.in | copy.out | in_bits(dims) | out_bits(dims) | run;
    // Short runs count as elements: a vector's slot would be nearly empty.
    const bool element = !dims.empty() && run <= 16 && alignment(bits) == run;
    if (!element || run == 16) {
      if (element && add_tile(copy, dims, 16)) return;
      add_rows(copy, dims, checked(run), bits);
      return;
    }
    if (add_tile(copy, dims, static_cast<uint32_t>(run))) return;
    auto task = task_for<ElementsTask>(copy, dims);
    task.count = checked(volume(dims));
    task.element = static_cast<uint32_t>(run);
    task.aligned = true;
    elements_.add(task, units_of(task.count, kUnitSlots));
  }

  void add_rows(const CkptCudaCopy& copy, const std::vector<Dim>& dims,
                uint32_t run, uint64_t bits) {
    auto task = task_for<RowsTask>(copy, dims);
    const uint32_t per_run = slots_of(copy.out, out_bits(dims), run);
    task.per_run = Divider(per_run);
    task.slots = checked(volume(dims) * per_run);
    task.bytes = run;
    task.unit = static_cast<uint32_t>(std::min<uint64_t>(alignment(bits), 8));
    rows_.add(task, units_of(task.slots, kUnitSlots));
  }

  // False if it is not a transpose or too thin a one.
  bool add_tile(const CkptCudaCopy& copy, const std::vector<Dim>& dims,
                uint32_t element) {
    const auto is_x = [&](const Dim& d) { return d.out == element; };
    const auto is_y = [&](const Dim& d) { return d.in == element; };
    const auto x = std::ranges::find_if(dims, is_x);
    const auto y = std::ranges::find_if(dims, is_y);
    if (x == dims.end() || y == dims.end() || x == y) return false;
    if (std::min(x->size, y->size) < kLeastEdge) return false;
    std::vector<Dim> planes;
    for (auto dim = dims.begin(); dim != dims.end(); ++dim)
      if (dim != x && dim != y) planes.push_back(*dim);
    auto task = task_for<TileTask>(copy, planes);
    const uint32_t edge = element < 4 ? 128 / element : 32;
    const auto tiles = [&](uint64_t size) {
      return checked((size + edge - 1) / edge);
    };
    task.in_x = x->in;
    task.out_y = y->out;
    task.size_x = checked(x->size);
    task.size_y = checked(y->size);
    task.tiles_x = Divider(tiles(x->size));
    task.tiles_y = Divider(tiles(y->size));
    task.element = element;
    task.in_words = (copy.in | in_bits(planes) | x->in) % 4 == 0;
    task.out_words = (copy.out | out_bits(planes) | y->out) % 4 == 0;
    tiles_[element].add(task, volume(planes) * tiles(x->size) * tiles(y->size));
    return true;
  }

  void add_cast(const CkptCudaCopy& copy, std::vector<Dim> dims) {
    if (!can_cast(copy.from, copy.to))
      throw std::invalid_argument("no cast of " + std::to_string(copy.from) +
                                  " to " + std::to_string(copy.to));
    uint64_t count = 1;
    if (!dims.empty() && dims.back().in == size_of(copy.from) &&
        dims.back().out == size_of(copy.to)) {
      count = dims.back().size;
      dims.pop_back();
    }
    auto task = task_for<CastTask>(copy, dims);
    const uint32_t width = cast_width(copy.from, copy.to);
    task.count = checked(count);
    const uint32_t per_run = (task.count + width - 1) / width;
    task.per_run = Divider(per_run);
    task.slots = checked(volume(dims) * per_run);
    task.from = copy.from;
    task.to = copy.to;
    const uint64_t vector = uint64_t{width} * size_of(copy.to);
    task.aligned =
        alignment(copy.out | out_bits(dims)) >= std::min<uint64_t>(vector, 16);
    uint32_t pair = 0;
    for (uint32_t p = 1; p < kPairCount; ++p)
      if (kPairs[p].from == copy.from && kPairs[p].to == copy.to) pair = p;
    casts_[pair].add(task, units_of(task.slots, kUnitSlots));
  }

  Group<RowsTask> rows_;
  Group<ElementsTask> elements_;
  std::map<uint32_t, Group<TileTask>> tiles_;  // by element size in bytes
  std::map<uint32_t, Group<CastTask>> casts_;  // by index in kPairs
};

void add_digests(const CkptCudaWork& work, Batch& batch) {
  Group<DigestTask> group;
  for (uint32_t i = 0; i < work.digest_count; ++i) {
    const CkptCudaDigest& digest = work.digests[i];
    std::vector<Dim> dims = collapse(digest.dims, digest.shape, digest.stride,
                                     digest.content_stride);
    DigestTask task;
    task.bytes = digest.bytes;
    if (!dims.empty() && dims.back().in == digest.bytes &&
        dims.back().out == digest.bytes) {
      task.bytes = checked(dims.back().size * digest.bytes);
      dims.pop_back();
    }
    if (volume(dims) == 0 || task.bytes == 0) continue;
    task.at = digest.at;
    task.content = digest.content;
    task.nest = nest_of(dims);
    const uint32_t per_run = slots_of(digest.at, in_bits(dims), task.bytes);
    task.per_run = Divider(per_run);
    task.slots = checked(volume(dims) * per_run);
    task.buffer = digest.buffer;
    task.sum = i;
    group.add(task, units_of(task.slots, kDigestUnitSlots));
  }
  group.launch(Kernel::kDigest, 0, batch);
}

}  // namespace

Batch make_batch(const CkptCudaWork& work) {
  Batch batch;
  for (const bool later : {false, true}) {
    Stage stage;
    for (uint64_t i = 0; i < work.copy_count; ++i)
      if ((work.copies[i].in_buffer == CKPT_CUDA_MID) == later)
        stage.add(work.copies[i]);
    stage.launch(batch);
  }
  add_digests(work, batch);
  return batch;
}

DigestTable make_table() {
  DigestTable table;
  for (uint64_t a = 0; a < 2; ++a)
    for (uint64_t i = 0; i < kDigestBlock; ++i)
      table.t[a][i] =
          static_cast<uint32_t>(mix(kDigestBlock * (a + 1) + i) >> 32) | 1;
  return table;
}

}  // namespace ckpt::cuda
