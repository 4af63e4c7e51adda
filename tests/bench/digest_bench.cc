// SPDX-License-Identifier: Apache-2.0
// GiB/s of the passes over every byte: digest and CRC-32. The 1 MiB block stays
// in the cache, as the engine's blocks do.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "lib/hash/crc32.h"
#include "lib/hash/digest.h"
#include "lib/hash/digest_kernel.h"

namespace {

uint64_t sink = 0;

// Repeats work(), which processes `bytes`, for a quarter of a second.
template <class Work>
void measure(const std::string& what, uint64_t bytes, Work work) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int sample = 0; sample < 5; ++sample) {
    const auto start = Clock::now();
    uint64_t rounds = 0;
    double seconds = 0;
    do {
      for (int i = 0; i < 16; ++i, ++rounds) sink += work();
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
    } while (seconds < 0.05);
    const double rate = static_cast<double>(rounds * bytes) / seconds;
    best = std::max(best, rate / (1 << 30));
  }
  fmt::print("{:<34} {:7.2f} GiB/s\n", what, best);
}

}  // namespace

int main() {
  using namespace ckpt;
  std::vector<std::byte> block(1 << 20);
  for (size_t i = 0; i < block.size(); ++i)
    block[i] = static_cast<std::byte>(i * 131 >> 3);

  for (const auto& usable : digest_detail::usable_kernels()) {
    const digest_detail::Tables tables{};
    measure(fmt::format("digest kernel {}", usable.name), block.size(), [&] {
      digest_detail::Sums sums;
      for (size_t at = 0; at < block.size(); at += 4096)
        usable.kernel(tables, 0, block.data() + at, 1024, sums);
      return sums.s0 + sums.s1;
    });
  }
  measure("digest", block.size(), [&] { return digest(0, block).d0; });
  measure("digest, unaligned", block.size() - 2, [&] {
    return digest(4099, std::span(block).subspan(1, block.size() - 2)).d0;
  });
  for (const size_t row : {2, 16, 64, 256, 2048, 16384}) {
    measure(fmt::format("digest_rows of {} bytes", row), block.size() / 2, [&] {
      return digest_rows(0, 8 * row, block.data(), 2 * row, row,
                         block.size() / 2 / row)
          .d0;
    });
  }
  for (const size_t row : {64, 2048, 1 << 20}) {
    measure(fmt::format("crc32 of {} bytes + contribution", row), block.size(),
            [&] {
              uint32_t crc = 0;
              for (size_t at = 0; at < block.size(); at += row)
                crc ^= crc32_contribution(
                    crc32(0, std::span(block).subspan(at, row)),
                    8 * (block.size() - at) + 12345);
              return crc;
            });
  }
  return sink == 42 ? 1 : 0;
}
