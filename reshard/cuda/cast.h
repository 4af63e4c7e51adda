// SPDX-License-Identifier: Apache-2.0
// Casts of runs of elements.
#pragma once

#include "reshard/cuda/element.h"
#include "reshard/cuda/tasks.h"

namespace ckpt::cuda {

// Elements that a thread casts at once: 16 bytes of the narrower side, but at
// most 32 of the wider.
CKPT_HD constexpr uint32_t cast_width(uint32_t from, uint32_t to) {
  const uint32_t a = size_of(from);
  const uint32_t b = size_of(to);
  const uint32_t narrow = 16 / (a < b ? a : b);
  const uint32_t wide = 32 / (a < b ? b : a);
  return narrow < wide ? narrow : wide;
}

// The bits of an element at any address.
CKPT_HD uint64_t load_bits(const std::byte* at, uint32_t size) {
  uint64_t bits = 0;
  for (uint32_t k = 0; k < size; ++k)
    bits |= uint64_t{static_cast<uint8_t>(at[k])} << (8 * k);
  return bits;
}
CKPT_HD void store_bits(std::byte* at, uint64_t bits, uint32_t size) {
  for (uint32_t k = 0; k < size; ++k)
    at[k] = static_cast<std::byte>(bits >> (8 * k));
}

// Element k of words that hold elements of `size` bytes.
template <uint32_t size>
CKPT_HD uint64_t element_of(const uint32_t* words, uint32_t k) {
  if constexpr (size == 8)
    return words[2 * k] | (uint64_t{words[2 * k + 1]} << 32);
  else if constexpr (size == 4)
    return words[k];
  else
    return (words[k * size / 4] >> (k * size % 4 * 8)) &
           ((1u << (8 * size)) - 1);
}
template <uint32_t size>
CKPT_HD void put_element(uint32_t* words, uint32_t k, uint64_t bits) {
  if constexpr (size == 8) {
    words[2 * k] = static_cast<uint32_t>(bits);
    words[2 * k + 1] = static_cast<uint32_t>(bits >> 32);
  } else if constexpr (size == 4) {
    words[k] = static_cast<uint32_t>(bits);
  } else {
    const auto low = static_cast<uint32_t>(bits) & ((1u << (8 * size)) - 1);
    const uint32_t shift = k * size % 4 * 8;
    if (shift == 0)
      words[k * size / 4] = low;
    else
      words[k * size / 4] |= low << shift;
  }
}

// Words [0, count) from `at` on, rounded up to vectors.
template <uint32_t count>
CKPT_HD void load_words(const std::byte* base, uint64_t at, uint32_t* words) {
  if constexpr (count == 2) {
    if (at % 8 == 0) {
      const auto pair = load<uint64_t>(base + at);
      words[0] = static_cast<uint32_t>(pair);
      words[1] = static_cast<uint32_t>(pair >> 32);
      return;
    }
  } else if constexpr (count == 1) {
    if (at % 4 == 0) {
      words[0] = load<uint32_t>(base + at);
      return;
    }
  }
  CKPT_UNROLL
  for (uint32_t w = 0; w < count; w += 4) {
    const Vec16 v = load_any(base, at + uint64_t{w} * 4);
    CKPT_UNROLL
    for (uint32_t k = 0; k < 4; ++k) words[w + k] = v.w[k];
  }
}

// Casts a whole slot: vectors in (from any address), vectors out.
template <uint32_t from, uint32_t to>
CKPT_HD void cast_slot(const std::byte* base, uint64_t at, std::byte* out) {
  constexpr uint32_t n = cast_width(from, to);
  constexpr uint32_t in_words = (n * size_of(from) + 3) / 4;
  constexpr uint32_t out_words = n * size_of(to) / 4;
  uint32_t source[in_words < 4 ? 4 : in_words];
  uint32_t target[out_words];
  load_words<in_words>(base, at, source);
  CKPT_UNROLL
  for (uint32_t k = 0; k < n; ++k)
    put_element<size_of(to)>(
        target, k, cast_bits(from, to, element_of<size_of(from)>(source, k)));
  if constexpr (out_words % 4 == 0) {
    CKPT_UNROLL
    for (uint32_t w = 0; w < out_words; w += 4)
      store(out + w * 4,
            Vec16{{target[w], target[w + 1], target[w + 2], target[w + 3]}});
  } else if constexpr (out_words == 2) {
    store(out, target[0] | (uint64_t{target[1]} << 32));
  } else {
    CKPT_UNROLL
    for (uint32_t w = 0; w < out_words; ++w) store(out + w * 4, target[w]);
  }
}

CKPT_HD void cast_singly(uint32_t from, uint32_t to, const std::byte* in,
                         std::byte* out, uint32_t count) {
  const uint32_t a = size_of(from);
  const uint32_t b = size_of(to);
  for (uint32_t k = 0; k < count; ++k)
    store_bits(out + k * b, cast_bits(from, to, load_bits(in + k * a, a)), b);
}

// The pairs most common in checkpoints have their own code; equal `from` and
// `to` stand for any pair.
template <uint32_t from, uint32_t to>
CKPT_HD void cast_runs(const CastTask& task, const Buffers& buffers,
                       uint32_t unit, uint32_t thread) {
  const uint32_t width = cast_width(task.from, task.to);
  const std::byte* base = buffers.of(task.in_buffer);
  CKPT_UNROLL_BY_4
  for (uint32_t k = 0; k < kSlotsPerThread; ++k) {
    const uint32_t slot = unit * kUnitSlots + k * kThreads + thread;
    if (slot >= task.slots) return;
    const uint32_t run = task.per_run.quotient(slot);
    const uint32_t first = (slot - run * task.per_run.divisor) * width;
    uint64_t in = task.in;
    uint64_t out = task.out;
    task.nest.find(run, in, out);
    in += uint64_t{first} * size_of(task.from);
    out += uint64_t{first} * size_of(task.to);
    const uint32_t rest = task.count - first;
    std::byte* target = buffers.of(task.out_buffer) + out;
    if constexpr (from != to) {
      if (task.aligned && rest >= width) {
        cast_slot<from, to>(base, in, target);
        continue;
      }
    }
    cast_singly(task.from, task.to, base + in, target,
                rest < width ? rest : width);
  }
}

}  // namespace ckpt::cuda
