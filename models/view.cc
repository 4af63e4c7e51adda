// SPDX-License-Identifier: Apache-2.0
#include "models/view.h"

#include <algorithm>
#include <bit>

#include "ckpt/error.h"

namespace ckpt::families {
namespace {

Dims byte_strides(const Shape& shape, uint64_t element) {
  Dims strides = row_major_strides(shape);
  for (uint64_t& stride : strides) stride *= element;
  return strides;
}

uint64_t count_of(const Shape& shape) {
  const auto count = element_count(shape);
  if (!count)
    throw unfaithful_error({}, "shape {} has too many elements",
                           to_string(shape));
  return *count;
}

// Each divides the one before it.
bool is_chain(const std::vector<uint64_t>& spans) {
  for (size_t i = 1; i < spans.size(); ++i)
    if (spans[i - 1] % spans[i] != 0) return false;
  return true;
}

void merge_into(std::vector<uint64_t>& all, const std::vector<uint64_t>& more) {
  all.insert(all.end(), more.begin(), more.end());
  std::ranges::sort(all, std::greater());
  all.erase(std::unique(all.begin(), all.end()), all.end());
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// bf16 is the upper half of an f32; the values used are exact in both.
std::string encode(DType dtype, double value) {
  const auto f32 = static_cast<float>(value);
  const auto whole = static_cast<int64_t>(value);
  switch (dtype) {
    case DType::f64:
      return bytes_of(value);
    case DType::f32:
      return bytes_of(f32);
    case DType::bf16:
      return bytes_of(
          static_cast<uint16_t>(std::bit_cast<uint32_t>(f32) >> 16));
    case DType::f16:
      if (value == 0) return bytes_of(uint16_t{0});
      if (value == 1) return bytes_of(uint16_t{0x3c00});
      break;
    case DType::i64:
      return bytes_of(whole);
    case DType::i32:
      return bytes_of(static_cast<int32_t>(whole));
    case DType::u8:
      return bytes_of(static_cast<uint8_t>(whole));
    default:
      break;
  }
  throw unfaithful_error({}, "no constant {} of dtype {}", value, name(dtype));
}

}  // namespace

View View::of(const Tensor& tensor) {
  const uint64_t element = element_size(tensor.dtype);
  if (element == 0)
    throw unfaithful_error({{}, tensor.name},
                           "{} packs elements into bits, so it can't be "
                           "rearranged",
                           name(tensor.dtype));
  View view;
  view.dtype_ = tensor.dtype;
  view.shape_ = tensor.shape;
  view.grid_ = tensor.grid.empty() ? tensor.shape : tensor.grid;
  for (size_t d = 0, f = 0; d < tensor.shape.size(); ++d) {
    uint64_t product = view.grid_[f++];
    while (product < tensor.shape[d] && f < view.grid_.size())
      product *= view.grid_[f++];
    if (product != tensor.shape[d])
      throw bug_error({{}, tensor.name}, "grid {} is none of shape {}",
                      to_string(view.grid_), to_string(tensor.shape));
    view.first_.push_back(f);
  }
  for (const Piece& piece : tensor.pieces) {
    if (!inside(piece.box, view.grid_))
      throw input_error({{}, tensor.name},
                        "a piece at {} of shape {} leaves the tensor's shape "
                        "{}",
                        to_string(piece.box.offset), to_string(piece.box.shape),
                        to_string(view.grid_));
    if (piece.flat && (piece.flat->begin > piece.flat->end ||
                       piece.flat->end > volume(piece.box)))
      throw input_error({{}, tensor.name},
                        "a flat piece of elements {}-{} leaves its box of {}",
                        piece.flat->begin, piece.flat->end, volume(piece.box));
    const Dims packed = byte_strides(piece.box.shape, element);
    const FlatRange all = piece.flat.value_or(FlatRange{0, volume(piece.box)});
    Part part{
        .offset = piece.box.offset,
        .size = piece.box.shape,
        .strides = piece.extent.strides.empty() ? packed : piece.extent.strides,
        .at = piece.extent.offset,
        .file = piece.extent.file,
        .transform = piece.transform};
    if (all.begin == all.end) continue;
    if (!piece.flat) {
      view.parts_.push_back(std::move(part));
      continue;
    }
    for (FlatPart& one : cut(piece.box, all)) {
      part.offset = std::move(one.box.offset);
      part.size = std::move(one.box.shape);
      part.at = piece.extent.offset + one.at * element;
      view.parts_.push_back(part);
    }
  }
  return view;
}

View View::filled(Catalog& catalog, DType dtype, const Shape& shape,
                  double value) {
  Tensor tensor{.dtype = dtype, .shape = shape};
  const auto bytes = byte_size(dtype, shape);
  if (!bytes || *bytes == 0)
    throw unfaithful_error({}, "a constant of shape {} {}", to_string(shape),
                           name(dtype));
  catalog.files.push_back({.path = "constant",
                           .size = *bytes,
                           .codec = Codec::kFill,
                           .fill = encode(dtype, value)});
  const auto file = static_cast<uint32_t>(catalog.files.size() - 1);
  tensor.pieces.push_back({.box = Box::whole(shape), .extent = {.file = file}});
  return of(tensor);
}

View View::reshape(const Shape& shape) const {
  const uint64_t count = count_of(shape);
  if (count != count_of(shape_))
    throw unfaithful_error({}, "shape {} can't be seen as {}",
                           to_string(shape_), to_string(shape));
  View view = *this;
  view.shape_ = shape;
  view.first_.assign(1, 0);
  if (count == 0) {
    view.parts_.clear();
    view.grid_ = shape;
    for (size_t d = 0; d < shape.size(); ++d) view.first_.push_back(d + 1);
    return view;
  }
  for (size_t f = view.grid_.size(); f-- > 0;)
    if (view.grid_[f] == 1) view.drop_factor(f);
  // From the last dimension to the first: factors [end, …) are given away.
  size_t end = view.grid_.size();
  std::vector<size_t> counts(shape.size(), 0);
  for (size_t d = shape.size(); d-- > 0;) {
    uint64_t have = 1;
    while (have < shape[d]) {
      const uint64_t wanted = shape[d] / have;
      const uint64_t factor = view.grid_[end - 1];
      if (wanted % factor == 0) {
        have *= factor;
        --end, ++counts[d];
      } else if (factor % wanted == 0) {
        view.split_factor(end - 1, wanted);
        have = shape[d];
        ++counts[d];
      } else {
        // Their steps don't match: joined into one factor, they can be cut
        // anew.
        for (; counts[d] != 0; --counts[d]) view.join_factor(end - 1);
        have = 1;
        if (view.grid_[end - 1] % shape[d] != 0) view.join_factor(--end - 1);
      }
    }
    if (counts[d] == 0) {
      view.insert_one(end);
      counts[d] = 1;
    }
  }
  for (const size_t n : counts) view.first_.push_back(view.first_.back() + n);
  return view;
}

View View::permute(std::span<const uint32_t> axes) const {
  if (axes.size() != rank())
    throw bug_error({}, "{} axes for shape {}", axes.size(), to_string(shape_));
  View view;
  view.dtype_ = dtype_;
  std::vector<size_t> order;
  for (const uint32_t axis : axes) {
    view.shape_.push_back(shape_[axis]);
    for (size_t f = begin_of(axis); f < end_of(axis); ++f) order.push_back(f);
    view.first_.push_back(order.size());
  }
  const auto ordered = [&](const Dims& dims) {
    Dims result;
    for (const size_t f : order) result.push_back(dims[f]);
    return result;
  };
  view.grid_ = ordered(grid_);
  view.parts_.reserve(parts_.size());
  for (const Part& part : parts_)
    view.parts_.push_back({ordered(part.offset), ordered(part.size),
                           ordered(part.strides), part.at, part.file,
                           part.transform});
  return view;
}

View View::slice(uint32_t dim, uint64_t begin, uint64_t size) const {
  if (dim >= rank() || begin > shape_[dim] || size > shape_[dim] - begin)
    throw unfaithful_error({}, "elements {}-{} of dimension {} of shape {}",
                           begin, begin + size, dim, to_string(shape_));
  View view = *this;
  view.shape_[dim] = size;
  if (count_of(view.shape_) == 0) return view.reshape(view.shape_);
  while (begin % view.inner_of(dim) != 0 || size % view.inner_of(dim) != 0) {
    view.join_factor(view.begin_of(dim));
    for (size_t d = dim + 1; d < view.first_.size(); ++d) --view.first_[d];
  }
  const size_t f = view.begin_of(dim);
  const uint64_t from = begin / view.inner_of(dim);
  const uint64_t to = from + size / view.inner_of(dim);
  view.grid_[f] = to - from;
  std::vector<Part> kept;
  for (Part& part : view.parts_) {
    const uint64_t low = std::max(part.offset[f], from);
    const uint64_t high = std::min(part.offset[f] + part.size[f], to);
    if (low >= high) continue;
    part.at += (low - part.offset[f]) * part.strides[f];
    part.offset[f] = low - from;
    part.size[f] = high - low;
    kept.push_back(std::move(part));
  }
  view.parts_ = std::move(kept);
  return view;
}

View View::concat(std::span<const View> views, uint32_t dim) {
  if (views.empty()) throw bug_error({}, "no views to join");
  std::vector<View> all(views.begin(), views.end());
  View& joined = all[0];
  for (const View& view : all) {
    bool fits = view.dtype_ == joined.dtype_ && view.rank() == joined.rank() &&
                dim < joined.rank();
    for (size_t d = 0; fits && d < joined.rank(); ++d)
      fits = d == dim || view.shape_[d] == joined.shape_[d];
    if (!fits)
      throw unfaithful_error({}, "{} {} and {} {} can't be joined along {}",
                             to_string(joined.shape_), name(joined.dtype_),
                             to_string(view.shape_), name(view.dtype_), dim);
  }
  for (uint32_t d = 0; d < joined.rank(); ++d) {
    std::vector<uint64_t> spans;
    for (const View& view : all) merge_into(spans, view.spans(d));
    const bool common =
        is_chain(spans) && std::ranges::all_of(all, [&](const View& view) {
          return spans.empty() || view.shape_[d] % spans.front() == 0;
        });
    for (View& view : all) {
      if (common)
        view.refine(d, spans);
      else
        view.coarsen(d);
    }
  }
  const size_t f = joined.begin_of(dim);
  for (size_t i = 1; i < all.size(); ++i) {
    for (Part& part : all[i].parts_) {
      part.offset[f] += joined.grid_[f];
      joined.parts_.push_back(std::move(part));
    }
    joined.grid_[f] += all[i].grid_[f];
    joined.shape_[dim] += all[i].shape_[dim];
  }
  count_of(joined.shape_);
  return std::move(joined);
}

View View::stack(std::span<const View> views) {
  std::vector<View> slices;
  slices.reserve(views.size());
  for (const View& view : views) {
    Shape shape{1};
    for (const uint64_t size : view.shape_) shape.push_back(size);
    slices.push_back(view.reshape(shape));
  }
  return concat(slices, 0);
}

uint8_t inverse_of(uint8_t transform) {
  switch (transform) {
    case kAddOne:
      return kSubtractOne;
    case kSubtractOne:
      return kAddOne;
    case kNegatedExp:
      return kLogOfNegated;
    case kLogOfNegated:
      return kNegatedExp;
    default:
      return kNoTransform;
  }
}

View View::transform(uint8_t bits) const {
  const bool real = dtype_ == DType::f64 || dtype_ == DType::f32 ||
                    dtype_ == DType::f16 || dtype_ == DType::bf16;
  if (!real)
    throw unfaithful_error({}, "no arithmetic on elements of {}", name(dtype_));
  View view = *this;
  constexpr uint8_t kArithmetic =
      kAddOne | kSubtractOne | kNegatedExp | kLogOfNegated;
  for (Part& part : view.parts_) {
    // Bits have no order: one at a time, or none after its inverse.
    const uint8_t before = part.transform & kArithmetic;
    if (before != 0 && before != inverse_of(bits))
      throw unfaithful_error({}, "numbers are changed twice");
    part.transform ^= before != 0 ? before : bits;
  }
  return view;
}

void View::into(Tensor& tensor, uint64_t spare) const {
  View view = *this;
  if (coarse_parts() / std::max<uint64_t>(1, spare) <= parts_.size())
    for (uint32_t d = 0; d < view.rank(); ++d) view.coarsen(d);
  bool plain = true;
  for (uint32_t d = 0; d < view.rank(); ++d) {
    for (size_t f = view.end_of(d);
         f-- > view.begin_of(d) && view.end_of(d) - view.begin_of(d) > 1;) {
      if (view.grid_[f] != 1) continue;
      view.drop_factor(f);
      for (size_t i = d + 1; i < view.first_.size(); ++i) --view.first_[i];
    }
    plain = plain && view.end_of(d) - view.begin_of(d) == 1;
  }
  tensor.shape = view.shape_;
  tensor.dtype = view.dtype_;
  tensor.grid = plain ? Shape() : view.grid_;
  tensor.pieces.clear();
  tensor.pieces.reserve(view.parts_.size());
  for (Part& part : view.parts_) {
    Piece piece;
    piece.box = {std::move(part.offset), std::move(part.size)};
    piece.extent.file = part.file;
    piece.extent.offset = part.at;
    piece.extent.strides = std::move(part.strides);
    piece.transform = part.transform;
    tensor.pieces.push_back(std::move(piece));
  }
}

}  // namespace ckpt::families
