// SPDX-License-Identifier: Apache-2.0
// A bound on everything allocated with new: catalogs and plans grow in every
// reader and writer. A program that replaces operator new (app/heap.cc) reports
// what is taken and given back; in any other nothing is counted or refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace ckpt::heap {

// Thrown by operator new: the bound is reached.
class Full : public std::bad_alloc {
 public:
  const char* what() const noexcept override;
};

// Bytes allocated now, to within some KiB for each thread.
uint64_t live();

// While it lives, allocations that would exceed `bytes` throw Full. Only those
// of kLeast bytes and more do: a growing list is left as it was, and many small
// allocations are soon followed by such a list.
class Bound {
 public:
  explicit Bound(uint64_t bytes);
  ~Bound();
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;
};
inline constexpr size_t kLeast = 4096;

// Removes the bound: what follows accounts for its own memory.
void lift_bound();

// For operator new and delete.
void took(size_t bytes) noexcept;
void gave(size_t bytes) noexcept;
bool has_room(size_t bytes) noexcept;

}  // namespace ckpt::heap
