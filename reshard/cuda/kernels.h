// SPDX-License-Identifier: Apache-2.0
// One thread's work on one unit, for each kernel: device.cu runs it in threads,
// device_host.cc in loops.
#pragma once

#include "reshard/cuda/batch.h"
#include "reshard/cuda/cast.h"
#include "reshard/cuda/copy.h"
#include "reshard/cuda/digest.h"
#include "reshard/cuda/tile.h"

namespace ckpt::cuda {

// What every kernel is given.
template <class Task>
struct Arguments {
  const Task* tasks = nullptr;
  uint32_t count = 0;
  Buffers buffers{};
};

template <class Task>
Arguments<Task> arguments(const Launch& launch, const std::byte* blob,
                          const Buffers& buffers) {
  return {reinterpret_cast<const Task*>(blob + launch.tasks), launch.count,
          buffers};
}

// Calls run.template operator()<from, to>() for an index in kPairs.
template <uint32_t pair = 0, class Run>
void with_pair(uint32_t wanted, Run&& run) {
  if constexpr (pair < kPairCount) {
    if (pair == wanted)
      run.template operator()<kPairs[pair].from, kPairs[pair].to>();
    else
      with_pair<pair + 1>(wanted, run);
  }
}

// Calls run.template operator()<T>() for a T of `element` bytes.
template <class Run>
void with_element(uint32_t element, Run&& run) {
  switch (element) {
    case 1:
      return run.template operator()<uint8_t>();
    case 2:
      return run.template operator()<uint16_t>();
    case 4:
      return run.template operator()<uint32_t>();
    case 8:
      return run.template operator()<uint64_t>();
    default:
      return run.template operator()<Vec16>();
  }
}

}  // namespace ckpt::cuda
