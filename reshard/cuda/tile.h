// SPDX-License-Identifier: Apache-2.0
// Transposes, tile by tile through shared memory.
//
//   source, y fastest         shared [x][y]          target, x fastest
//   lanes along y       ->    rows of an odd    ->   lanes along x
//                             number of elements
//
// Odd rows put neighbours along x into different banks. Elements of one or two
// bytes move four bytes at a time, so that a warp moves 128 bytes either way.
#pragma once

#include "reshard/cuda/tasks.h"

namespace ckpt::cuda {

// Elements per word, for those narrower than a word.
template <class T>
inline constexpr uint32_t kPerWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
// Edge of a tile: 128 bytes, or 32 elements if they are wider than a word.
template <class T>
inline constexpr uint32_t kEdge = 32 * kPerWord<T>;

template <class T>
struct TileMemory {
  T at[kEdge<T>][kEdge<T> + 1];
};

// A unit's tile: where it is and how large it is.
struct TilePlace {
  uint64_t in = 0;
  uint64_t out = 0;
  uint32_t width = 0;   // along x
  uint32_t height = 0;  // along y
};

template <class T>
CKPT_HD TilePlace tile_place(const TileTask& task, uint32_t unit) {
  const uint32_t row = task.tiles_x.quotient(unit);
  const uint32_t x = (unit - row * task.tiles_x.divisor) * kEdge<T>;
  const uint32_t plane = task.tiles_y.quotient(row);
  const uint32_t y = (row - plane * task.tiles_y.divisor) * kEdge<T>;
  TilePlace place{task.in, task.out, task.size_x - x, task.size_y - y};
  task.nest.find(plane, place.in, place.out);
  place.in += x * task.in_x + y * sizeof(T);
  place.out += y * task.out_y + x * sizeof(T);
  if (place.width > kEdge<T>) place.width = kEdge<T>;
  if (place.height > kEdge<T>) place.height = kEdge<T>;
  return place;
}

template <class T>
CKPT_HD void split_word(uint32_t word, T* to) {
  CKPT_UNROLL
  for (uint32_t k = 0; k < kPerWord<T>; ++k)
    to[k] = static_cast<T>(word >> (8 * sizeof(T) * k));
}

template <class T>
CKPT_HD void tile_load(const TileTask& task, const std::byte* in,
                       const TilePlace& place, uint32_t thread,
                       TileMemory<T>& memory) {
  constexpr uint32_t n = kPerWord<T>;
  const uint32_t lane = thread % 32;
  CKPT_UNROLL_BY_4
  for (uint32_t x = thread / 32; x < place.width; x += kThreads / 32) {
    const std::byte* line = in + place.in + x * task.in_x;
    if constexpr (n > 1) {
      if (task.in_words && lane * n + n <= place.height) {
        T values[n];
        split_word(load<uint32_t>(line + lane * 4), values);
        CKPT_UNROLL
        for (uint32_t k = 0; k < n; ++k) memory.at[x][lane * n + k] = values[k];
        continue;
      }
    }
    for (uint32_t y = lane * n; y < lane * n + n && y < place.height; ++y)
      memory.at[x][y] = load<T>(line + y * sizeof(T));
  }
}

template <class T>
CKPT_HD void tile_store(const TileTask& task, std::byte* out,
                        const TilePlace& place, uint32_t thread,
                        const TileMemory<T>& memory) {
  constexpr uint32_t n = kPerWord<T>;
  const uint32_t lane = thread % 32;
  CKPT_UNROLL_BY_4
  for (uint32_t y = thread / 32; y < place.height; y += kThreads / 32) {
    std::byte* line = out + place.out + y * task.out_y;
    if constexpr (n > 1) {
      if (task.out_words && lane * n + n <= place.width) {
        uint32_t word = 0;
        CKPT_UNROLL
        for (uint32_t k = 0; k < n; ++k)
          word |= uint32_t{memory.at[lane * n + k][y]} << (8 * sizeof(T) * k);
        store(line + lane * 4, word);
        continue;
      }
    }
    for (uint32_t x = lane * n; x < lane * n + n && x < place.width; ++x)
      store(line + x * sizeof(T), memory.at[x][y]);
  }
}

}  // namespace ckpt::cuda
