// SPDX-License-Identifier: Apache-2.0
// Digests (docs/digest.md) of runs of bytes: each thread sums vectors of 16
// bytes, and a block of threads adds its sums to the task's.
//
// Bytes of a vector outside the run count as zeros. A run may begin inside a
// word of the content: then the words are shifted up by as many bytes.
#pragma once

#include "reshard/cuda/tasks.h"

namespace ckpt::cuda {

inline constexpr uint32_t kDigestBlock = 1024;  // words

// t_a of the digest, t[a][i].
struct DigestTable {
  alignas(16) uint32_t t[2][kDigestBlock];
};

struct DigestSum {
  uint64_t d0 = 0;
  uint64_t d1 = 0;
};

// splitmix64's output function.
CKPT_HD uint64_t mix(uint64_t x) {
  uint64_t z = x + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The multipliers of one block of 1024 words, made when it is reached.
struct BlockKeys {
  uint64_t block = ~uint64_t{0};
  uint64_t m0 = 0;
  uint64_t m1 = 0;

  CKPT_HD void select(uint64_t b) {
    if (b == block) return;
    block = b;
    m0 = mix((uint64_t{1} << 32) + b) | 1;
    m1 = mix((uint64_t{2} << 32) + b) | 1;
  }
};

// Clears bytes [0, low) and [high, 16).
CKPT_HD void keep_bytes(Vec16& v, uint32_t low, uint32_t high) {
  CKPT_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t first = 4 * k;
    if (low > first)
      v.w[k] = low - first >= 4
                   ? 0
                   : v.w[k] >> (8 * (low - first)) << (8 * (low - first));
    if (high < first + 4) {
      const uint32_t kept = high <= first ? 0 : high - first;
      v.w[k] &= kept == 0 ? 0 : ~0u >> (32 - 8 * kept);
    }
  }
}

// Adds words of the content, starting with word `j`.
template <uint32_t count>
CKPT_HD void add_words(const DigestTable& table, const uint32_t* words,
                       uint64_t j, BlockKeys& keys, DigestSum& sum) {
  uint64_t s0 = 0;
  uint64_t s1 = 0;
  keys.select(j / kDigestBlock);
  CKPT_UNROLL
  for (uint32_t k = 0; k < count; ++k) {
    const auto i = static_cast<uint32_t>(j + k) % kDigestBlock;
    if (k > 0 && i == 0) {  // the next block begins
      sum.d0 += s0 * keys.m0;
      sum.d1 += s1 * keys.m1;
      s0 = s1 = 0;
      keys.select((j + k) / kDigestBlock);
    }
    s0 += uint64_t{words[k]} * table.t[0][i];
    s1 += uint64_t{words[k]} * table.t[1][i];
  }
  sum.d0 += s0 * keys.m0;
  sum.d1 += s1 * keys.m1;
}

// Adds four words in one block, from a multiple of four.
CKPT_HD void add_vector(const DigestTable& table, const Vec16& v, uint64_t j,
                        BlockKeys& keys, DigestSum& sum) {
  const auto i = static_cast<uint32_t>(j) % kDigestBlock;
  const auto* t0 = reinterpret_cast<const std::byte*>(&table.t[0][i]);
  const auto* t1 = reinterpret_cast<const std::byte*>(&table.t[1][i]);
  const Vec16 a = load<Vec16>(t0);
  const Vec16 b = load<Vec16>(t1);
  uint64_t s0 = 0;
  uint64_t s1 = 0;
  CKPT_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    s0 += uint64_t{v.w[k]} * a.w[k];
    s1 += uint64_t{v.w[k]} * b.w[k];
  }
  keys.select(j / kDigestBlock);
  sum.d0 += s0 * keys.m0;
  sum.d1 += s1 * keys.m1;
}

// A vector, and where its first byte would be in the content.
struct Placed {
  Vec16 v;
  int64_t content = 0;
};

CKPT_HD Placed load_slot(const DigestTask& task, const std::byte* base,
                         uint32_t slot) {
  Placed placed{};
  if (slot >= task.slots) return placed;
  const uint32_t run = task.per_run.quotient(slot);
  const uint32_t place = slot - run * task.per_run.divisor;
  uint64_t at = task.at;
  uint64_t content = task.content;
  task.nest.find(run, at, content);
  const uint64_t begin = (at & ~uint64_t{15}) + uint64_t{place} * 16;
  const uint64_t end = at + task.bytes;
  if (begin >= end) return placed;
  placed.v = load<Vec16>(base + begin);
  if (begin < at || begin + 16 > end)
    keep_bytes(placed.v, static_cast<uint32_t>(begin < at ? at - begin : 0),
               static_cast<uint32_t>(end - begin < 16 ? end - begin : 16));
  placed.content = static_cast<int64_t>(content + (begin - at));
  return placed;
}

// Before the start of the content there are only zeros, whose keys don't
// matter.
CKPT_HD void add_slot(const DigestTable& table, const Placed& placed,
                      BlockKeys& keys, DigestSum& sum) {
  const Vec16& v = placed.v;
  const int64_t c = placed.content;
  const auto j = static_cast<uint64_t>(c >> 2);
  const uint32_t up = static_cast<uint32_t>(c & 3) * 8;
  if ((c & 15) == 0) {
    add_vector(table, v, j, keys, sum);
  } else if (up == 0) {
    add_words<4>(table, v.w, j, keys, sum);
  } else {
    const uint32_t words[5] = {
        v.w[0] << up, funnel_down(v.w[0], v.w[1], 32 - up),
        funnel_down(v.w[1], v.w[2], 32 - up),
        funnel_down(v.w[2], v.w[3], 32 - up), v.w[3] >> (32 - up)};
    add_words<5>(table, words, j, keys, sum);
  }
}

// A warp goes through 8 contiguous KiB, so its threads reach a new block of the
// digest every eighth time; each has four loads in flight at once.
CKPT_HD DigestSum digest_runs(const DigestTask& task, const DigestTable& table,
                              const Buffers& buffers, uint32_t unit,
                              uint32_t thread) {
  constexpr uint32_t n = 4;
  static_assert(kDigestSlotsPerThread % n == 0);
  DigestSum sum;
  BlockKeys keys;
  const std::byte* base = buffers.of(task.buffer);
  const uint32_t first = unit * kDigestUnitSlots +
                         thread / 32 * (32 * kDigestSlotsPerThread) +
                         thread % 32;
  for (uint32_t k = 0; k < kDigestSlotsPerThread; k += n) {
    if (first + 32 * k >= task.slots) break;
    Placed placed[n];
    CKPT_UNROLL
    for (uint32_t i = 0; i < n; ++i)
      placed[i] = load_slot(task, base, first + 32 * (k + i));
    CKPT_UNROLL
    for (uint32_t i = 0; i < n; ++i) add_slot(table, placed[i], keys, sum);
  }
  return sum;
}

}  // namespace ckpt::cuda
