// Independent small tasks on all processors.
#pragma once

#include <cstddef>
#include <functional>

namespace ckpt {

// Runs work(0) … work(count - 1), each once, on as many threads as there are
// processors, and at least `least`; they begin in that order. After an error no
// more are begun, and the error of the lowest number is thrown: the same one
// each time. Work that waits for a disk or a server wants many threads.
void parallel_for(size_t count, const std::function<void(size_t)>& work,
                  size_t least = 1);

}  // namespace ckpt
