// SPDX-License-Identifier: Apache-2.0
// What lives as long as the process, and is not taken apart at its end.
//
// A command ends where the process does. To give back a catalog of 100,000
// tensors before that, block by block, is a tenth of the time of `inspect`,
// and of a plan of millions of pieces more; the kernel takes all of it at once.
#pragma once

#include <list>
#include <utility>

namespace ckpt::app {

// For values whose destructors only free memory.
template <class T>
T& keep(T value) {
  static auto* const kept = new std::list<T>;
  return kept->emplace_back(std::move(value));
}

}  // namespace ckpt::app
