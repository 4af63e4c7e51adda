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

// While it lives, allocations that would pass `bytes` throw Full, those of less
// than kLeast bytes only a MiB beyond it: mostly a list that grows is refused
// first, and is left as it was. The process's resident set counts too, but for
// files: what lies free between blocks, and what is taken from the system
// without new.
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

// No bound while one of them lives: the engine's buffers are counted before
// they are made.
class Unbounded {
 public:
  Unbounded();
  ~Unbounded();
  Unbounded(const Unbounded&) = delete;
  Unbounded& operator=(const Unbounded&) = delete;
};

// From here on what this thread allocates is counted and never refused: a
// thread that serves others has nobody to throw Full to. Before it takes what
// others ask for it looks whether that fits().
void exempt_this_thread() noexcept;

// What the process takes of memory now, its program included; 0 if the system
// does not tell.
uint64_t process_bytes();

// Gives back to the system what lies free between blocks that are in use.
void give_back();

// For operator new and delete.
void took(size_t bytes) noexcept;
void gave(size_t bytes) noexcept;
bool has_room(size_t bytes) noexcept;
// The same of a thread that is exempt.
bool fits(size_t bytes) noexcept;

}  // namespace ckpt::heap
