// SPDX-License-Identifier: Apache-2.0
#include "lib/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "lib/processors.h"

namespace ckpt {

void parallel_for(size_t count, const std::function<void(size_t)>& work,
                  size_t least) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  std::mutex mutex;
  std::exception_ptr error;
  size_t error_at = SIZE_MAX;
  const auto run = [&] {
    while (!stopped) {
      const size_t i = next++;
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        stopped = true;
        if (i >= error_at) continue;
        error_at = i;
        error = std::current_exception();
      }
    }
  };
  const size_t threads = std::max<size_t>({1, least, processors()});
  std::vector<std::jthread> others;
  // Work that ends at once is done before there are many.
  for (size_t t = 1; t < std::min(threads, count) && next < count; ++t)
    if (!try_thread(others, run)) break;
  run();
  others.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace ckpt
