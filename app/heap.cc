// SPDX-License-Identifier: Apache-2.0
// Counts what the program allocates with new (lib/heap.h), unless a sanitizer
// has its own operator new.
#include "lib/heap.h"

#include <malloc.h>

#include <cstdlib>
#include <exception>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKPT_COUNTS_HEAP 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define CKPT_COUNTS_HEAP 0
#endif
#endif
#ifndef CKPT_COUNTS_HEAP
#define CKPT_COUNTS_HEAP 1
#endif

#if CKPT_COUNTS_HEAP
namespace {

namespace heap = ckpt::heap;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) bytes = 1;
  // Whatever a destructor needs for its end, it gets.
  if (!heap::has_room(bytes) &&
      (bytes >= heap::kLeast || std::uncaught_exceptions() == 0))
    throw heap::Full();
  for (;;) {
    void* const found =
        alignment == 0
            ? std::malloc(bytes)
            : std::aligned_alloc(
                  alignment, (bytes + alignment - 1) / alignment * alignment);
    if (found) {
      heap::took(::malloc_usable_size(found));
      return found;
    }
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}

void release(void* bytes) noexcept {
  if (!bytes) return;
  heap::gave(::malloc_usable_size(bytes));
  std::free(bytes);
}

}  // namespace

// The array and nothrow forms call these.
void* operator new(std::size_t bytes) { return allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* bytes) noexcept { release(bytes); }
void operator delete(void* bytes, std::size_t) noexcept { release(bytes); }
void operator delete(void* bytes, std::align_val_t) noexcept { release(bytes); }
void operator delete(void* bytes, std::size_t, std::align_val_t) noexcept {
  release(bytes);
}
#endif
