// SPDX-License-Identifier: Apache-2.0
#include "api/check/read_all.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

#include "api/check/stats_of.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/heap.h"
#include "lib/io/read_count.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "reshard/cuda/load.h"
#include "reshard/plan/plan_size.h"
#include "reshard/plan/planner.h"
#include "reshard/ranks/run.h"
#include "reshard/sources/source_crcs.h"

namespace ckpt::library {

namespace {

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

// Within a batch, jobs stay in the order of files.
void order_by_batch(const std::vector<uint32_t>& batches, reshard::Plan& plan) {
  const auto batch = [&](const auto& work) { return batches[work.tensor]; };
  std::ranges::stable_sort(plan.jobs, {}, batch);
  std::ranges::stable_sort(plan.gathers, {}, batch);
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
  std::optional<StatsOf> stats;
  if (what.stats) stats.emplace(catalog, engine.threads, engine.max_mem);
  const uint64_t held =
      reshard::held_bytes(catalog) + what.beside +
      (stats ? stats->memory() : 0) +
      (what.crcs ? catalog.crcs.size() * reshard::SourceCrcs::kMemory : 0);
  const bool large = reshard::piece_count(catalog, {}) >= kCounted;
  reshard::PlanSize size;
  if (large) {
    size = reshard::count_read_plan(catalog, what.replicas);
    uint64_t room = options.max_mem;
    reshard::make_room(held + size.bytes(), 0, catalog.path, room);
  }
  const heap::Unbounded counted;
  reshard::Plan plan =
      reshard::make_read_plan(catalog, what.replicas, large ? &size : nullptr);
  if (!large) size.add(plan);
  if (stats) {
    order_by_batch(stats->batches(), plan);
    options.threads = stats->threads();
  }
  reshard::make_room(held + size.bytes(), 0, catalog.path, options.max_mem);
  options.io = engine.io;
  options.check_crcs = what.crcs;
  options.passed = what.passed;
  options.progress = engine.make_progress();
  if (stats)
    options.observe = [&](uint32_t tensor, uint64_t offset,
                          std::span<const std::byte> bytes) {
      stats->add(tensor, offset, bytes);
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
  if (!stats) return reading;
  reading.stats = stats->take();
  if (const uint64_t without = stats->without_quantiles())
    engine.warn(fmt::format(
        "no quantiles of {}: what is read in many parts at once needs more "
        "memory than {}; pass a larger --max-mem",
        text::counted(without, "tensor"), text::iec_size(engine.max_mem)));
  return reading;
}

}  // namespace ckpt::library
