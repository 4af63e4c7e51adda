// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/crc_check.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/hash/crc32.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/remote.h"
#include "lib/processors.h"
#include "reshard/plan/work.h"
#include "reshard/run/caching.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

// One thread's sweeps over records. Asks ahead for what is next; a check of
// more than memory leaves in the page cache only what was there before.
class Sweep {
 public:
  Sweep(const Catalog& catalog, OpenSources& open, const DirectReads& reads,
        bool drops, uint64_t block)
      : reader_(catalog.files, open.handles), drops_(drops), buffer_(block) {
    if (!reads.on) return;
    direct_.emplace(catalog.files, open.direct, reads, block);
    reader_.read_around(*direct_);
  }

  // Calls `use` with the bytes [begin, end) of the file, block by block.
  template <class Use>
  void run(uint32_t file, uint64_t begin, uint64_t end, const Use& use) {
    bool next_was_cached = ask_for(file, begin, end);
    for (uint64_t at = begin; at < end && !interrupted(); at += kItemBytes) {
      const uint64_t stop = std::min(end, at + kItemBytes);
      const bool was_cached = next_was_cached;
      if (stop < end) next_was_cached = ask_for(file, stop, end);
      bool through_cache = false;
      for (uint64_t from = at; from < stop && !interrupted();) {
        const auto part = std::span(buffer_).first(
            std::min<uint64_t>(buffer_.size(), stop - from));
        through_cache |= reader_.read(file, from, part);
        use(part);
        from += part.size();
      }
      const io::Handle* handle = reader_.raw_file(file);
      if (drops_ && through_cache && !was_cached && handle)
        handle->drop_cache(at, stop - at);
    }
  }

  SourceReader& reader() { return reader_; }

 private:
  // Asks for an item from `at` on; true if it is in the page cache.
  bool ask_for(uint32_t file, uint64_t at, uint64_t end) {
    const uint64_t stop = std::min(end, at + kItemBytes);
    const bool cached = reader_.is_cached(file, at, stop - at);
    const io::Handle* const handle = reader_.raw_file(file);
    const bool local = !handle || !io::remote_of(*handle);
    if (direct_ && local && !(direct_->wanted_only() && cached)) {
      for (; at < stop; at += buffer_.size())
        direct_->want(file, at, std::min<uint64_t>(buffer_.size(), stop - at));
    } else if (!cached) {
      reader_.ask_for(file, at, stop - at);
    }
    return cached;
  }

  SourceReader reader_;
  std::optional<DirectReader> direct_;
  const bool drops_;
  std::vector<std::byte> buffer_;
};

// What all threads ask a server for: short records come together, and far
// enough ahead that nobody waits for each. The rest of a long one is left to
// its sweep.
class RecordsAhead {
 public:
  RecordsAhead(const Catalog& catalog, const std::vector<uint32_t>& which)
      : catalog_(catalog), which_(which), most_(io::remote_memory() / 2) {
    const bool server = std::ranges::any_of(
        catalog.files, [](const File& file) { return io::is_url(file.path); });
    if (!server) return;
    begins_.reserve(which.size() + 1);
    begins_.push_back(0);
    for (const uint32_t index : which)
      begins_.push_back(begins_.back() + asked(catalog.crcs[index]));
  }

  // Call before record i of them is read.
  void reach(size_t i, SourceReader& reader) {
    if (begins_.empty()) return;
    const std::lock_guard lock(mutex_);
    next_ = std::max(next_, i);
    if (begins_[next_] - begins_[i] > most_ / 2) return;
    while (next_ < which_.size() && begins_[next_] - begins_[i] < most_)
      ask_one_file(begins_[i] + most_, reader);
  }

 private:
  static uint64_t asked(const StoredCrc& stored) {
    return std::min(stored.end - stored.begin, kItemBytes);
  }
  void ask_one_file(uint64_t end, SourceReader& reader) {
    std::vector<io::Range> ranges;
    const uint32_t file = catalog_.crcs[which_[next_]].file;
    for (; next_ < which_.size() && begins_[next_] < end; ++next_) {
      const StoredCrc& stored = catalog_.crcs[which_[next_]];
      if (stored.file != file) break;
      ranges.push_back({stored.begin, stored.begin + asked(stored)});
    }
    std::ranges::sort(ranges, {}, &io::Range::begin);
    reader.ask_for(file, ranges, {});
  }

  const Catalog& catalog_;
  const std::vector<uint32_t>& which_;
  const uint64_t most_;
  std::vector<uint64_t> begins_;  // bytes asked for before each; empty: local
  std::mutex mutex_;
  size_t next_ = 0;  // the first one that was not asked for
};

// The problem of one record; nothing if its checksum is right.
std::optional<Problem> check_one(const StoredCrc& stored,
                                 const Catalog& catalog, const Plan* plan,
                                 Sweep& sweep, const RunOptions& options) {
  Problem problem = damage("crc32", {catalog.files[stored.file].path, {}}, "");
  uint32_t crc = 0;
  uint64_t at = stored.begin;
  try {
    sweep.run(stored.file, stored.begin, stored.end,
              [&](std::span<const std::byte> part) {
                crc = crc32(crc, part);
                if (options.passed) options.passed(stored.file, at, part);
                at += part.size();
                options.progress.advance(part.size());
              });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo)  // an unreadable sector: say whose it is
      throw Error(error.code(),
                  {problem.file, plan ? tensor_in(*plan, stored)
                                      : tensors_in(catalog, {stored})[0]},
                  fmt::format("record {}: {}", stored.record, error.problem()),
                  error.hint());
    if (error.code() != ExitCode::kDamaged) throw;
    problem.kind = "unreadable";
    problem.message =
        fmt::format("record {}: {}", stored.record, error.problem());
    return problem;
  }
  if (crc == stored.crc32) return std::nullopt;
  problem.message =
      fmt::format("record {} (bytes {}-{}) has CRC-32 {:08x}, stored is {:08x}",
                  stored.record, stored.begin, stored.end, crc, stored.crc32);
  return problem;
}

}  // namespace

uint64_t crc_bytes(const Catalog& catalog) {
  uint64_t bytes = 0;
  for (const StoredCrc& stored : catalog.crcs)
    bytes += stored.end - stored.begin;
  return bytes;
}

std::vector<std::string> tensors_in(const Catalog& catalog,
                                    const std::vector<StoredCrc>& ranges) {
  struct Start {
    uint32_t file;
    uint64_t offset;
    size_t tensor;
    auto operator<=>(const Start&) const = default;
  };
  std::vector<Start> starts;
  for (size_t t = 0; t < catalog.tensors.size(); ++t)
    for (const Piece& piece : catalog.tensors[t].pieces)
      starts.push_back({piece.extent.file, piece.extent.offset, t});
  std::ranges::sort(starts);
  std::vector<std::string> names;
  for (const StoredCrc& range : ranges) {
    const auto at =
        std::ranges::lower_bound(starts, Start{range.file, range.begin, 0});
    const bool inside =
        at != starts.end() && at->file == range.file && at->offset < range.end;
    names.push_back(inside ? catalog.tensors[at->tensor].name : "");
  }
  return names;
}

std::string tensor_in(const Plan& plan, const StoredCrc& range) {
  const PlannedTensor* found = nullptr;
  uint64_t first = range.end;
  const auto see = [&](uint32_t file, uint64_t offset, uint32_t tensor) {
    if (file != range.file || offset < range.begin || offset >= first) return;
    first = offset;
    found = &plan.tensors[tensor];
  };
  for (const Job& job : plan.jobs)
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan.lanes[job.first_source + i];
      see(lane.file, lane.offset, job.tensor);
    }
  for (const Gather& gather : plan.gathers)
    see(gather.source_file, gather.source_offset, gather.tensor);
  return found ? found->name : "";
}

std::set<uint32_t> tensors_of(const Plan& plan, const Catalog& catalog,
                              const std::vector<uint32_t>& which) {
  std::set<uint32_t> tensors;
  if (which.empty()) return tensors;
  const auto see = [&](uint32_t file, uint64_t begin, uint64_t end,
                       uint32_t tensor) {
    for (const uint32_t index : which) {
      const StoredCrc& crc = catalog.crcs[index];
      if (crc.file == file && begin < crc.end && crc.begin < end)
        tensors.insert(tensor);
    }
  };
  for (const Job& job : plan.jobs)
    for (uint32_t i = 0; i < job.sources; ++i) {
      const Lane& lane = plan.lanes[job.first_source + i];
      const uint64_t rows = job.rows == 0 ? 0 : job.rows - 1;
      see(lane.file, lane.offset,
          lane.offset + rows * lane.row_stride + lane.width, job.tensor);
    }
  for (const Gather& gather : plan.gathers) {
    uint64_t end = gather.source_offset +
                   element_size(plan.tensors[gather.tensor].source_dtype);
    for (size_t d = 0; d < gather.shape.size(); ++d)
      if (gather.shape[d] > 1)
        end += (gather.shape[d] - 1) * gather.source_strides[d];
    see(gather.source_file, gather.source_offset, end, gather.tensor);
  }
  return tensors;
}

std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options) {
  std::vector<uint32_t> all(catalog.crcs.size());
  std::iota(all.begin(), all.end(), 0U);
  return named_problems(catalog, check_crcs(catalog, all, options));
}

std::vector<Problem> named_problems(
    const Catalog& catalog, std::vector<std::pair<uint32_t, Problem>> found) {
  std::vector<Problem> problems;
  std::vector<StoredCrc> wrong;  // one per problem
  for (std::pair<uint32_t, Problem>& one : found) {
    problems.push_back(std::move(one.second));
    wrong.push_back(catalog.crcs[one.first]);
  }
  if (problems.empty()) return problems;
  const std::vector<std::string> names = tensors_in(catalog, wrong);
  for (size_t i = 0; i < names.size(); ++i) problems[i].tensor = names[i];
  std::ranges::sort(problems, {}, [](const Problem& p) {
    return std::tie(p.file, p.message);
  });
  return problems;
}

std::vector<std::pair<uint32_t, Problem>> check_crcs(
    const Catalog& catalog, const std::vector<uint32_t>& which,
    const RunOptions& options, const Plan* plan) {
  uint64_t bytes = 0;
  for (const uint32_t index : which)
    bytes += catalog.crcs[index].end - catalog.crcs[index].begin;
  const bool drops = drops_behind(bytes, 0, options);
  const heap::Unbounded buffers;  // they are counted
  OpenSources open;
  std::mutex mutex;
  std::vector<std::pair<uint32_t, Problem>> problems;
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  const uint32_t cores = processors();
  auto threads = static_cast<uint32_t>(std::clamp<size_t>(
      which.size(), 1, options.threads ? options.threads : cores));
  const DirectReads reads = direct_reads(drops, bytes, options);
  const uint64_t block = fit_block(options, reads.on ? reads.ahead + 2 : 1,
                                   options.block, threads);
  RecordsAhead ahead(catalog, which);
  run_threads(
      threads,
      [&](uint32_t) {
        Sweep sweep(catalog, open, reads, drops, block);
        for (size_t i = next++; i < which.size(); i = next++) {
          if (stopped || interrupted()) return;
          ahead.reach(i, sweep.reader());
          auto problem =
              check_one(catalog.crcs[which[i]], catalog, plan, sweep, options);
          if (!problem) continue;
          const std::lock_guard lock(mutex);
          problems.emplace_back(which[i], std::move(*problem));
        }
      },
      [&] { stopped = true; });
  if (interrupted()) throw Interrupted("");
  return problems;
}

}  // namespace ckpt::reshard
