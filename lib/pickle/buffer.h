// SPDX-License-Identifier: Apache-2.0
// A growing array of plain values, based on realloc: growing a large one moves
// page tables, not bytes, and needs no room for two copies. Large ones grow in
// small steps. Its memory is counted (lib/tree_memory.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#include "lib/tree_memory.h"

namespace ckpt::pickle {

template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    std::free(data_);
    tree_memory::give(capacity_ * sizeof(T));
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T& back() { return data_[size_ - 1]; }

  void push_back(T value) {
    if (size_ == capacity_) grow(size_ + 1);
    data_[size_++] = value;
  }
  void pop_back() { --size_; }
  void shrink(size_t size) { size_ = size; }

  // Makes room for `count` more values, whose content is undefined; returns
  // the index of the first.
  size_t extend(size_t count) {
    if (capacity_ - size_ < count) grow(size_ + count);
    const size_t first = size_;
    size_ += count;
    return first;
  }

 private:
  void grow(size_t needed) {
    constexpr size_t kStep = (size_t{4} << 20) / sizeof(T);
    const size_t step = std::min(capacity_ / 2, kStep + capacity_ / 16);
    const size_t capacity = std::max(capacity_ + step + 16, needed);
    if (capacity > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    const size_t more = (capacity - capacity_) * sizeof(T);
    tree_memory::take(more);
    void* moved = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (moved == nullptr) {
      tree_memory::give(more);
      throw std::bad_alloc();
    }
    data_ = static_cast<T*>(moved);
    capacity_ = capacity;
  }
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace ckpt::pickle
