// SPDX-License-Identifier: Apache-2.0
// How a job of many ranks would share a checkpoint, without running it: the
// imbalance, what rank 0 sends, and the memory of the largest share; with
// --exchange send also the payload and the messages between ranks.
//
//   ranks_bench SRC FORMAT [TP [PP [DP [SHARD_GB]]]]
//
// Numbers for docs/scaling.md: SRC is what scripts/make_sparse.py makes for
// 405B parameters.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

#include "api/write/write.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "reshard/ranks/by_target.h"
#include "reshard/ranks/exchange.h"
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

// The bytes that a rank holds for a share, besides its buffers.
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

// Target bytes of an item, by the rank that writes them.
void add_bytes(const reshard::Plan& plan, const reshard::Item& item,
               const std::vector<uint32_t>& owners,
               std::map<uint32_t, uint64_t>& to) {
  if (item.gather) {
    const uint32_t file = plan.gathers[item.index].target_file;
    if (file != reshard::kNone) to[owners[file]] += ranks::bytes_of(plan, item);
    return;
  }
  const reshard::Job& job = plan.jobs[item.index];
  for (uint32_t m = 0; m < job.moves; ++m) {
    const reshard::Move& move = plan.moves[job.first_move + m];
    if (move.target == reshard::kNone) continue;
    const uint32_t file = plan.lanes[job.first_target + move.target].file;
    const uint64_t begin = std::max(item.begin, move.source_column);
    const uint64_t end = std::min(item.end, move.source_column + move.bytes);
    if (job.rows != 1)
      to[owners[file]] += (item.end - item.begin) * move.bytes;
    else if (begin < end)
      to[owners[file]] += end - begin;
  }
}

struct Range {
  uint64_t least = UINT64_MAX, most = 0, all = 0;
  void add(uint64_t value) {
    least = std::min(least, value);
    most = std::max(most, value);
    all += value;
  }
  std::string off_mean(size_t count) const {
    const double mean = static_cast<double>(all) / static_cast<double>(count);
    return fmt::format("{:+8.3f}% {:+8.3f}%",
                       100 * (static_cast<double>(most) / mean - 1),
                       100 * (static_cast<double>(least) / mean - 1));
  }
};

// What one rank sends, in messages that are as full as possible.
struct Traffic {
  uint64_t sent = 0;
  uint64_t messages = 0;
};
Traffic traffic_of(const std::map<uint32_t, uint64_t>& to, uint32_t rank) {
  Traffic traffic;
  const uint64_t slots = std::max<uint64_t>(8, to.size() + 4);
  const uint64_t room = 8 * ranks::kExchangeBuffer / slots;
  for (const auto& [owner, bytes] : to) {
    if (owner == rank) continue;
    traffic.sent += bytes;
    traffic.messages += (bytes + room - 1) / room;
  }
  return traffic;
}

void row(const library::Prepared& prepared, uint32_t count, bool sends) {
  Stopwatch watch;
  const reshard::Plan& plan = prepared.plan;
  const auto parts =
      ranks::split(plan, prepared.source,
                   reshard::cut_items(plan, reshard::kItemBytes), count);
  ranks::Mailing mailing;
  const auto owners = ranks::owners_of(prepared.target, count);
  if (sends) {
    mailing = {.round = 1, .buffer = ranks::kExchangeBuffer, .owners = owners};
    mailing.away.resize(count);
  }
  Range read, written, sent;
  std::vector<uint64_t> writes(count);
  uint64_t tasks = 0, largest = 0, memory = 0, messages = 0;
  for (uint32_t rank = 0; rank < count; ++rank) {
    uint64_t bytes = 0;
    std::map<uint32_t, uint64_t> to;
    for (const reshard::Item& item : parts[rank]) {
      bytes += ranks::bytes_of(plan, item);
      if (sends) add_bytes(plan, item, owners, to);
    }
    read.add(bytes);
    for (const auto& [owner, part] : to) writes[owner] += part;
    const Traffic traffic = traffic_of(to, rank);
    sent.add(traffic.sent);
    messages += traffic.messages;
    mailing.rank = rank;
    const ranks::Share share = ranks::make_share(
        plan, prepared.source, &prepared.target, parts[rank], mailing);
    const uint64_t task = ranks::pack(share).size();
    if (rank != 0) tasks += task;
    largest = std::max(largest, task);
    memory = std::max(memory, held(share) + task);
  }
  for (const uint64_t bytes : writes) written.add(bytes);
  if (sends) memory += ranks::kExchangeSlots * ranks::kExchangeBuffer;
  // Hello, task, done, end; drained and close.
  const uint64_t words = (sends ? 6 : 4) * uint64_t{count - 1} + 3 * messages;
  fmt::print("{:>5}  {:8.1f} {}  {:8.1f}  {:7.2f}  {:7.1f}  {:>9}", count,
             mib(read.all) / 1024 / count, read.off_mean(count), mib(tasks),
             mib(largest), mib(memory), words);
  if (sends)
    fmt::print("  {:9.1f}  {:7.2f}  {:>9}  {}", mib(sent.all) / 1024,
               mib(sent.most) / 1024, messages, written.off_mean(count));
  fmt::print("  {:6.1f} s\n", watch.lap());
}

void table(const library::Prepared& prepared, bool sends) {
  fmt::print(
      "\n--exchange {}\nranks  GiB each  most   least        shares, MiB  "
      "largest   memory      words{}\n",
      sends ? "send" : "auto",
      sends ? "   sent, GiB  largest  messages  writers: most, least" : "");
  for (const uint32_t count : {1U, 8U, 64U, 512U, 4096U})
    row(prepared, count, sends);
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
  if (words.size() > 5) layout.max_shard_size = size(5) * 1'000'000'000ULL;
  const library::Prepared prepared =
      library::prepare(std::move(source), layout, "/tmp/ranks_bench_out", {});
  const reshard::Plan& plan = prepared.plan;
  fmt::print(
      "planned in {:.1f} s: {} jobs, {} lanes, {} moves, {} items, {:.1f} GiB "
      "read, peak {:.0f} MiB on rank 0\n",
      watch.lap(), plan.jobs.size(), plan.lanes.size(), plan.moves.size(),
      reshard::cut_items(plan, reshard::kItemBytes).size(),
      mib(plan.bytes_read) / 1024, mib(peak_of_process()));
  table(prepared, false);
  table(prepared, true);
  return 0;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "ranks_bench SRC FORMAT [TP [PP [DP [SHARD_GB]]]]\n");
    return 2;
  }
  try {
    return ckpt::simulate({argv + 1, argv + argc});
  } catch (const ckpt::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return static_cast<int>(error.code());
  }
}
