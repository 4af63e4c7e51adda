// SPDX-License-Identifier: Apache-2.0
// Shapes and boxes: integer geometry with checked 64-bit arithmetic.
//
// Everything here counts elements, not bytes; row-major order throughout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ckpt {

// a * b and a + b, or nothing when 64 bits don't hold the result.
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

// A short list of uint64_t. Up to two are stored inside the object: a
// checkpoint has millions of pieces, each holds a few of these, and weights are
// matrices. With room for four, an index of 1.4 million pieces took a third
// more memory.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<uint64_t> values)
      : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const uint64_t> values) {
    assign(values.data(), values.size());
  }
  explicit Dims(const std::vector<uint64_t>& values)
      : Dims(std::span<const uint64_t>(values)) {}
  Dims(size_t count, uint64_t value) {
    std::fill_n(room(count), count, value);
    size_ = static_cast<uint32_t>(count);
  }
  Dims(const Dims& other) { assign(other.data(), other.size_); }
  Dims(Dims&& other) noexcept { steal(other); }
  Dims& operator=(const Dims& other) {
    if (this != &other) {
      size_ = 0;
      assign(other.data(), other.size_);
    }
    return *this;
  }
  Dims& operator=(Dims&& other) noexcept {
    if (this != &other) {
      release();
      steal(other);
    }
    return *this;
  }
  ~Dims() { release(); }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint64_t* data() { return on_heap() ? heap_ : inline_; }
  const uint64_t* data() const { return on_heap() ? heap_ : inline_; }
  uint64_t& operator[](size_t i) { return data()[i]; }
  uint64_t operator[](size_t i) const { return data()[i]; }
  uint64_t* begin() { return data(); }
  uint64_t* end() { return data() + size_; }
  const uint64_t* begin() const { return data(); }
  const uint64_t* end() const { return data() + size_; }
  uint64_t& back() { return data()[size_ - 1]; }
  uint64_t back() const { return data()[size_ - 1]; }
  void push_back(uint64_t value) {
    uint64_t* const values =
        size_ == capacity_ ? grow(2 * size_t{capacity_}) : data();
    values[size_++] = value;
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }

  friend bool operator==(const Dims& a, const Dims& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend auto operator<=>(const Dims& a, const Dims& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(),
                                                  b.end());
  }

 private:
  static constexpr uint32_t kInline = 2;
  bool on_heap() const { return capacity_ > kInline; }
  // Room for `count` values: the current storage, or more on the heap.
  uint64_t* room(size_t count) {
    return count > capacity_ ? grow(count) : data();
  }
  uint64_t* grow(size_t count);
  void assign(const uint64_t* values, size_t count) {
    std::copy_n(values, count, room(count));
    size_ = static_cast<uint32_t>(count);
  }
  void steal(Dims& other) noexcept {
    // Copies all of it, used or not, heap or not: a register move or two.
    std::memcpy(static_cast<void*>(this), &other, sizeof *this);  // NOLINT
    other.capacity_ = kInline;
    other.size_ = 0;
  }
  void release() {
    if (on_heap()) delete[] heap_;
    capacity_ = kInline;
    size_ = 0;
  }

  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
  union {
    uint64_t inline_[kInline];
    uint64_t* heap_;
  };
};

using Shape = Dims;

// Tensors of a higher rank are refused. torch stops at 64 in most operators;
// safetensors has no limit.
inline constexpr size_t kMaxRank = 1024;

// The number of elements, or nothing on overflow. The product runs from left
// to right and an overflow counts even when a later dimension is zero.
std::optional<uint64_t> element_count(const Shape& shape);

// "[2, 3]"
std::string to_string(const Dims& dims);

// Row-major strides in elements.
Dims row_major_strides(const Shape& shape);

// offset[d] <= index[d] < offset[d] + shape[d]. Both have the tensor's rank.
struct Box {
  Dims offset;
  Dims shape;

  static Box whole(const Shape& shape) {
    return {Dims(shape.size(), 0), shape};
  }
  friend bool operator==(const Box&, const Box&) = default;
};

// The number of elements of a box that lies inside a tensor (can't overflow).
uint64_t volume(const Box& box);

// True if the box lies inside a tensor of that shape (rank included).
bool inside(const Box& box, const Shape& shape);

// The common box, or nothing if no element is common. Ranks must agree.
std::optional<Box> intersect(const Box& a, const Box& b);

// Elements [begin, end) of a box in its own row-major order.
struct FlatRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};

// std::optional<FlatRange> in two thirds of the size: no valid range ends
// before it begins.
class MaybeFlat {
 public:
  MaybeFlat() = default;
  MaybeFlat(std::nullopt_t) {}                          // NOLINT: as optional's
  MaybeFlat(const FlatRange& range) : range_(range) {}  // NOLINT
  MaybeFlat(const std::optional<FlatRange>& range)      // NOLINT
      : range_(range.value_or(kNone)) {}

  bool has_value() const { return range_ != kNone; }
  explicit operator bool() const { return has_value(); }
  FlatRange& operator*() { return range_; }
  const FlatRange& operator*() const { return range_; }
  FlatRange* operator->() { return &range_; }
  const FlatRange* operator->() const { return &range_; }
  FlatRange value_or(const FlatRange& other) const {
    return has_value() ? range_ : other;
  }
  void reset() { range_ = kNone; }
  friend bool operator==(const MaybeFlat&, const MaybeFlat&) = default;

 private:
  static constexpr FlatRange kNone = {UINT64_MAX, 0};
  FlatRange range_ = kNone;
};

// A part of a flat range that is a box, and its start within the range.
struct FlatPart {
  Box box;          // in the coordinates of the tensor
  uint64_t at = 0;  // elements after range.begin
};

// Cuts a flat range of `box` into at most 2 * rank - 1 boxes, in order. Each
// part is contiguous in the row-major order of `box`.
std::vector<FlatPart> cut(const Box& box, const FlatRange& range);

}  // namespace ckpt
