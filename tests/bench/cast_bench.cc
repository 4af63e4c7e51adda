// SPDX-License-Identifier: Apache-2.0
// GiB of source cast per second of processor time, with each instruction set of
// the processor. Source and target together are 1 MiB and stay in the cache, as
// the engine's blocks do; both start at odd bytes.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/numbers/cast_kernel.h"

namespace {

using namespace ckpt;

constexpr uint64_t kBytes = 1 << 20;
constexpr DType kTypes[] = {DType::f64,  DType::f32,     DType::f16,
                            DType::bf16, DType::f8_e4m3, DType::f8_e5m2};

// The best of several 20 ms samples.
double rate(const reshard::CastKernel& kernel, DType from, DType to) {
  const uint64_t count = kBytes / (element_size(from) + element_size(to));
  std::vector<std::byte> in(kBytes + 1), out(kBytes + 1);
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<std::byte>(i * 131 >> 3);
  double best = 0;
  for (int sample = 0; sample < 10; ++sample) {
    const std::clock_t start = std::clock();
    uint64_t rounds = 0;
    double seconds = 0;
    do {
      kernel.cast(from, to, in.data() + 1, out.data() + 1, count);
      ++rounds;
      seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    } while (seconds < 0.02);
    const double bytes =
        static_cast<double>(rounds * count * element_size(from));
    best = std::max(best, bytes / seconds / (1 << 30));
  }
  return best;
}

}  // namespace

int main() {
  for (const auto& kernel : reshard::usable_cast_kernels()) {
    fmt::print("{:<14}", kernel.name);
    for (const DType to : kTypes) fmt::print("{:>9}", name(to));
    fmt::print("\n");
    for (const DType from : kTypes) {
      fmt::print("  {:<12}", name(from));
      for (const DType to : kTypes)
        fmt::print(
            "{:>9}",
            from == to ? "-" : fmt::format("{:.1f}", rate(kernel, from, to)));
      fmt::print("\n");
    }
  }
}
