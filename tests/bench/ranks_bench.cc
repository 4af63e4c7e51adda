// How a job of many ranks would share a checkpoint, without running it: the
// imbalance, what rank 0 sends, what the largest share holds in memory.
//
//   ranks_bench SRC FORMAT [TP [PP [DP]]]
//
// Numbers for docs/scaling.md: SRC is what scripts/make_sparse.py makes of
// 405B parameters.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "app/library/write.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "reshard/ranks/share.h"
#include "reshard/ranks/split.h"

namespace ckpt {
namespace {

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double took = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return took;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

uint64_t peak_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

// What a rank holds of a share, besides its buffers.
uint64_t held(const ranks::Share& share) {
  const reshard::Plan& plan = share.plan;
  uint64_t bytes = plan.jobs.size() * sizeof(reshard::Job) +
                   plan.lanes.size() * sizeof(reshard::Lane) +
                   plan.moves.size() * sizeof(reshard::Move) +
                   plan.gathers.size() * sizeof(reshard::Gather) +
                   plan.tensors.size() * sizeof(reshard::PlannedTensor) +
                   plan.slots * sizeof(Digest) +
                   share.items.size() * sizeof(reshard::Item) +
                   share.source.files.size() * sizeof(File) +
                   share.source.crcs.size() * 2 * sizeof(StoredCrc) +
                   share.target.files.size() * sizeof(TargetFile);
  for (const TargetFile& file : share.target.files)
    bytes += file.crcs.size() * sizeof(LateCrc);
  return bytes;
}

void row(const library::Prepared& prepared, uint32_t count) {
  Stopwatch watch;
  const reshard::Plan& plan = prepared.plan;
  const auto parts =
      ranks::split(plan, prepared.source,
                   reshard::cut_items(plan, reshard::kItemBytes), count);
  uint64_t least = UINT64_MAX, most = 0, all = 0, sent = 0, largest = 0,
           memory = 0;
  for (const auto& part : parts) {
    uint64_t bytes = 0;
    for (const reshard::Item& item : part) bytes += ranks::bytes_of(plan, item);
    least = std::min(least, bytes);
    most = std::max(most, bytes);
    all += bytes;
    const ranks::Share share =
        ranks::make_share(plan, prepared.source, &prepared.target, part);
    const uint64_t task = ranks::pack(share).size();
    if (&part != &parts.front()) sent += task;
    largest = std::max(largest, task);
    memory = std::max(memory, held(share) + task);
  }
  const double mean = static_cast<double>(all) / count;
  fmt::print(
      "{:>5}  {:10.1f}  {:+7.3f}% {:+7.3f}%  {:9.1f}  {:8.2f}  {:8.1f}  "
      "{:6.1f} s\n",
      count, mean / (1 << 30), 100 * (static_cast<double>(most) / mean - 1),
      100 * (static_cast<double>(least) / mean - 1), mib(sent), mib(largest),
      mib(memory), watch.lap());
}

int simulate(const std::vector<std::string_view>& words) {
  const auto size = [&](size_t i) {
    return i < words.size() ? static_cast<uint32_t>(std::atoi(words[i].data()))
                            : 1;
  };
  Stopwatch watch;
  Catalog source = formats::open(std::string(words[0]), "", {});
  fmt::print("opened in {:.1f} s: {} tensors, {} files\n", watch.lap(),
             source.tensors.size(), source.files.size());
  Layout layout;
  layout.format = words[1];
  layout.topology = {.tp = size(2), .pp = size(3), .dp = size(4)};
  const library::Prepared prepared =
      library::prepare(std::move(source), layout, "/tmp/ranks_bench_out", {});
  const reshard::Plan& plan = prepared.plan;
  fmt::print(
      "planned in {:.1f} s: {} jobs, {} lanes, {} moves, {} items, {:.1f} GiB "
      "read, peak {:.0f} MiB on rank 0\n\n",
      watch.lap(), plan.jobs.size(), plan.lanes.size(), plan.moves.size(),
      reshard::cut_items(plan, reshard::kItemBytes).size(),
      mib(plan.bytes_read) / 1024, mib(peak_of_process()));
  fmt::print(
      "ranks    GiB each      most    least   sent MiB   largest    memory   "
      "   time\n");
  for (const uint32_t count : {1U, 8U, 64U, 512U, 4096U}) row(prepared, count);
  return 0;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "ranks_bench SRC FORMAT [TP [PP [DP]]]\n");
    return 2;
  }
  try {
    return ckpt::simulate({argv + 1, argv + argc});
  } catch (const ckpt::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
