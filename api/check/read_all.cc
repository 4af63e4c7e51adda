// SPDX-License-Identifier: Apache-2.0
#include "api/check/read_all.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <span>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/heap.h"
#include "lib/io/read_count.h"
#include "lib/io/remote.h"
#include "reshard/cuda/load.h"
#include "reshard/plan_size.h"
#include "reshard/planner.h"
#include "reshard/ranks/run.h"
#include "reshard/source_crcs.h"
#include "reshard/values.h"

namespace ckpt::library {

namespace {

// Statistics of each tensor, filled from many threads.
class StatsOf {
 public:
  explicit StatsOf(const Catalog& catalog)
      : catalog_(catalog), stats_(catalog.tensors.size()) {}

  void add(uint32_t tensor, std::span<const std::byte> bytes) {
    const DType dtype = catalog_.tensors[tensor].dtype;
    if (!reshard::has_values(dtype)) return;
    const uint64_t element = element_size(dtype);
    reshard::Stats part;
    reshard::add_stats(dtype, bytes.data(), bytes.size() / element, part);
    const std::lock_guard lock(mutexes_[tensor % mutexes_.size()]);
    stats_[tensor] += part;
  }
  std::vector<reshard::Stats> take() { return std::move(stats_); }

 private:
  const Catalog& catalog_;
  std::vector<reshard::Stats> stats_;
  std::array<std::mutex, 64> mutexes_;
};

void add_replica_problems(const Catalog& catalog, const reshard::Plan& plan,
                          const reshard::RunResult& result,
                          std::vector<Problem>& problems) {
  for (const reshard::ReplicaCheck& check : plan.replicas) {
    if (result.source[check.first] == result.source[check.second]) continue;
    problems.push_back(damage("replica",
                              {catalog.files[check.second_file].path,
                               plan.tensors[check.tensor].name},
                              "this copy differs from the one in {}",
                              catalog.files[check.first_file].path));
  }
}

// Of records that are wrong, found again by reading them alone, and of those
// that hold little of any tensor, which the run did not judge.
void add_crc_problems(const Catalog& catalog, const reshard::Plan& plan,
                      const reshard::RunResult& result,
                      reshard::RunOptions options, Reading& reading) {
  std::vector<uint32_t> which = reshard::SourceCrcs(catalog).left_out(plan);
  std::ranges::copy(result.wrong_crcs, std::back_inserter(which));
  std::ranges::sort(which);
  for (const uint32_t index : which)
    reading.bytes += catalog.crcs[index].end - catalog.crcs[index].begin;
  options.progress = {};
  reading.problems = reshard::named_problems(
      catalog, reshard::check_crcs(catalog, which, options));
}

}  // namespace

Reading read_all(Catalog& catalog, const Engine& engine, const ReadWhat& what) {
  locate(catalog);
  reshard::RunOptions options;
  if (engine.cuda) options.device = &reshard::CudaModule::get();
  options.threads = engine.threads;
  options.max_mem = engine.max_mem - io::share_remote_memory(engine.max_mem);
  // A large plan is counted before it is made, as those of writing are.
  constexpr uint64_t kCounted = 1 << 17;
  const uint64_t held =
      reshard::held_bytes(catalog) + what.beside +
      (what.crcs ? catalog.crcs.size() * reshard::SourceCrcs::kMemory : 0);
  const bool large = reshard::piece_count(catalog, {}) >= kCounted;
  reshard::PlanSize size;
  if (large) {
    size = reshard::count_read_plan(catalog, what.replicas);
    uint64_t room = options.max_mem;
    reshard::make_room(held + size.bytes(), 0, catalog.path, room);
  }
  const heap::Unbounded counted;
  const reshard::Plan plan =
      reshard::make_read_plan(catalog, what.replicas, large ? &size : nullptr);
  if (!large) size.add(plan);
  reshard::make_room(held + size.bytes(), 0, catalog.path, options.max_mem);
  options.io = engine.io;
  options.check_crcs = what.crcs;
  options.passed = what.passed;
  options.progress = engine.make_progress();
  StatsOf stats(catalog);
  if (what.stats)
    options.observe = [&](uint32_t tensor, uint64_t,
                          std::span<const std::byte> bytes) {
      stats.add(tensor, bytes);
    };
  const uint64_t header_bytes = io::bytes_read();
  reshard::Output nowhere;
  options.progress.begin("reading", plan.bytes_read);
  const reshard::RunResult result = ranks::run(plan, catalog, nowhere, options);
  options.progress.end();
  Reading reading;
  reading.bytes = result.bytes_read;
  reading.header_bytes = header_bytes;
  if (what.crcs) add_crc_problems(catalog, plan, result, options, reading);
  add_replica_problems(catalog, plan, result, reading.problems);
  reading.digests.assign(result.source.begin(),
                         result.source.begin() + static_cast<std::ptrdiff_t>(
                                                     catalog.tensors.size()));
  if (what.stats) reading.stats = stats.take();
  return reading;
}

}  // namespace ckpt::library
