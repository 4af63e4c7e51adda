// SPDX-License-Identifier: Apache-2.0
// Independent small tasks on all processors.
#pragma once

#include <cstddef>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lib/session.h"

namespace ckpt {

// Runs work(0) … work(count - 1), each once, on one thread per processor, but
// at least `least`; they begin in that order. After an error no more are begun,
// and the error of the lowest number is thrown: the same one each time. Work
// that waits for a disk or a server wants many threads.
void parallel_for(size_t count, const std::function<void(size_t)>& work,
                  size_t least = 1);

// Starts one more thread, in this one's session. Returns false if the system
// gives none (`ulimit -u`, a container's limit, no memory for its stack): the
// others do its work then.
template <class Work>
bool try_thread(std::vector<std::jthread>& threads, Work work) {
  try {
    threads.emplace_back(in_session(std::move(work)));
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace ckpt
