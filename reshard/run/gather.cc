// SPDX-License-Identifier: Apache-2.0
// Elements with arbitrary strides (transposed and permuted views). The box is
// halved until a tile and the file range that it touches fit the buffers; then
// comes one read, and a copy element by element.
#include <cstring>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/trace.h"
#include "reshard/numbers/transform.h"
#include "reshard/plan/tiles.h"
#include "reshard/run/mover.h"

namespace ckpt::reshard {
namespace {

// Advances an index through all dimensions except the last; false at the end.
bool next_row(Dims& index, const Dims& shape) {
  for (size_t d = shape.size() - 1; d-- > 0;) {
    if (++index[d] < shape[d]) return true;
    index[d] = 0;
  }
  return false;
}

template <size_t kElement>
void copy_sized(const std::byte* from, uint64_t stride, std::byte* to,
                uint64_t count) {
  for (uint64_t i = 0; i < count; ++i)
    std::memcpy(to + i * kElement, from + i * stride, kElement);
}

// With a size known to the compiler, each copy is a load and a store, otherwise
// a call.
void copy_elements(const std::byte* from, uint64_t stride, std::byte* to,
                   uint64_t element, uint64_t count) {
  switch (element) {
    case 1:
      return copy_sized<1>(from, stride, to, count);
    case 2:
      return copy_sized<2>(from, stride, to, count);
    case 4:
      return copy_sized<4>(from, stride, to, count);
    case 8:
      return copy_sized<8>(from, stride, to, count);
    default:
      for (uint64_t i = 0; i < count; ++i)
        std::memcpy(to + i * element, from + i * stride, element);
  }
}

}  // namespace

void Mover::run_gather(const Gather& gather) {
  const PlannedTensor& tensor = plan_.tensors[gather.tensor];
  const uint64_t element = element_size(tensor.source_dtype);
  const uint64_t widest = std::max(element, element_size(tensor.target_dtype));
  Tiles tiles(gather,
              {.element = element, .span = block_, .count = block_ / widest});
  Dims begin, shape;
  while (!interrupted() && tiles.next(begin, shape))
    emit_tile(gather, begin, shape);
}

void Mover::emit_tile(const Gather& gather, const Dims& begin,
                      const Dims& shape) {
  const PlannedTensor& tensor = plan_.tensors[gather.tensor];
  const uint64_t from = element_size(tensor.source_dtype);
  const uint64_t to = element_size(tensor.target_dtype);
  const uint64_t count = element_count(shape).value_or(0);
  const uint64_t row = shape.back();
  // Tiles overlap in the file, so they give no checksum.
  const trace::Span span("gather", count * from);
  reader_.read(gather.source_file,
               gather.source_offset + dot(begin, gather.source_strides),
               {in_, span_of(gather, shape, from)});
  Dims index(shape.size(), 0);
  uint64_t done = 0;
  do {
    copy_elements(in_ + dot(index, gather.source_strides),
                  gather.source_strides.back(), out_ + done * from, from, row);
    done += row;
  } while (next_row(index, shape));
  if (gather.transform)
    apply_transform(gather.transform, tensor.source_dtype,
                    {out_, count * from});
  const std::byte* result = out_;
  if (tensor.casts()) {
    cast(tensor, out_, in_, count);
    result = in_;
  }
  index = Dims(shape.size(), 0);
  done = 0;
  do {
    const uint64_t content = gather.content +
                             dot(begin, gather.content_strides) +
                             dot(index, gather.content_strides);
    account(gather.digest, gather.check, gather.tensor, content * from,
            {out_ + done * from, row * from});
    if (tensor.casts() && options_.digest && gather.digest != kNone)
      add_target(gather.digest,
                 digest(content * to, {result + done * to, row * to}));
    if (gather.target_file != kNone) {
      iovec part{const_cast<std::byte*>(result) + done * to, row * to};
      write(gather.target_file,
            gather.target_offset + dot(begin, gather.target_strides) +
                dot(index, gather.target_strides),
            {&part, 1});
    }
    done += row;
  } while (next_row(index, shape));
  options_.progress.advance(count * from);
}

}  // namespace ckpt::reshard
