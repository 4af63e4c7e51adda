// SPDX-License-Identifier: Apache-2.0
#include "reshard/engine.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>

#include "ckpt/error.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/remote.h"
#include "lib/processors.h"
#include "lib/text/format.h"
#include "lib/trace.h"
#include "reshard/cuda/mover.h"
#include "reshard/plan/work.h"
#include "reshard/run/caching.h"
#include "reshard/run/crc_check.h"
#include "reshard/run/mover.h"
#include "reshard/sources/source_crcs.h"

namespace ckpt::reshard {
namespace {

uint32_t thread_count(const RunOptions& options, const Plan& plan) {
  // It reads a file of the kernel's each time.
  static const uint32_t cores = processors();
  const uint32_t wanted = options.threads ? options.threads : cores;
  const size_t most = std::max<size_t>(plan.jobs.size() + plan.gathers.size(),
                                       plan.bytes_read / kItemBytes);
  return static_cast<uint32_t>(std::clamp<size_t>(most, 1, wanted));
}

// How a run reads, and the memory that it uses to do so.
struct Reading {
  bool drops = false;  // leaves nothing in the page cache
  DirectReads direct;
  uint32_t threads = 0;
  // A thread's blocks: two, or those of its device's ring, plus those of direct
  // reads.
  uint64_t blocks = 0;
  uint64_t block = 0;  // bytes

  uint64_t memory() const { return blocks * block * threads; }
};

Reading reading_of(const Plan& plan, const RunOptions& options) {
  Reading reading{
      .drops = drops_behind(plan.bytes_read, plan.bytes_written, options),
      .threads = thread_count(options, plan)};
  const uint64_t most = options.device
                            ? std::min(DeviceMover::most_block(reading.threads),
                                       DeviceMover::kBlocks * options.block)
                            : options.block;
  const uint64_t own = options.device ? DeviceMover::host_buffers() : 2;
  reading.direct = direct_reads(reading.drops, plan.bytes_read, options);
  reading.blocks = own;
  if (reading.direct.on) reading.blocks += reading.direct.ahead + 1;
  // If everything is cached, shorter blocks would cost more than they may save.
  if (reading.direct.wanted_only && !reading.drops &&
      reading.blocks * most * reading.threads > options.max_mem) {
    reading.direct = {};
    reading.blocks = own;
  }
  reading.block = fit_block(options, reading.blocks, most, reading.threads);
  return reading;
}

void check_casts(const Plan& plan, const RunOptions& options) {
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.casts() && !options.cast)
      throw bug_error({{}, tensor.name}, "no cast function for {} to {}",
                      name(tensor.source_dtype), name(tensor.target_dtype));
}

// The sums of a run, shared by all threads; an item adds to a few of them.
class Sums {
 public:
  Sums(const Plan& plan, bool digest) : plan_(plan) {
    if (!digest) return;
    result_.source.resize(plan.slots);
    result_.target.resize(plan.tensors.size());
  }
  void add(const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    for (const auto& [slot, part] : outcome.source)
      result_.source.at(slot) += part;
    for (const auto& [tensor, part] : outcome.target)
      result_.target.at(tensor) += part;
    for (const auto& [tensor, loss] : outcome.losses)
      result_.losses[tensor] += loss;
  }
  RunResult finish(const std::deque<Mover>& movers) {
    for (const Mover& mover : movers) {
      result_.bytes_read += mover.bytes_read();
      result_.bytes_written += mover.bytes_written();
    }
    for (size_t i = 0; i < result_.target.size(); ++i)
      if (!plan_.tensors[i].casts()) result_.target[i] = result_.source[i];
    return std::move(result_);
  }

 private:
  const Plan& plan_;
  std::mutex mutex_;
  RunResult result_;
};

// Takes over what an earlier run did: adds its sums, and removes its items from
// the list.
void take_over(const Journal& journal, std::vector<Item>& items, Sums& sums,
               Output& output) {
  std::vector<bool> done(items.size());
  for (const Outcome& outcome : journal.done()) {
    if (outcome.item >= items.size() || done[outcome.item])
      throw bug_error({}, "the journal has item {} of {} twice or not at all",
                      outcome.item, items.size());
    done[outcome.item] = true;
    sums.add(outcome);
    for (const CrcPart& part : outcome.crcs) output.add_crc(part);
  }
  std::erase_if(items, [&](const Item& item) { return done[item.number]; });
}

// What a thread asks for before it gets there. A disk is busy with one item. A
// server sends as fast as it can only while many requests are under way, so it
// is asked for all that its memory holds, whatever the size of the items; and
// its answers are taken as they come.
struct Ahead {
  size_t items = 1;
  uint64_t bytes = UINT64_MAX;
  bool server = false;
};

// A thread's looks ahead at a server. The next one comes when half of what the
// last one asked for is left: what one item has moved on by would be a request
// of its own, however small the item is.
class Looks {
 public:
  explicit Looks(const Ahead& ahead) : ahead_(ahead) {}

  void before(const Item& item, uint32_t thread, WorkQueue& queue,
              Mover& mover) {
    if (left_ > 0) {
      --left_;
      mover.look_ahead(item, {});
      return;
    }
    const size_t asked =
        mover.look_ahead(item, queue.peek(thread, ahead_.items), ahead_.bytes);
    if (ahead_.server) left_ = asked / 2;
  }

 private:
  const Ahead& ahead_;
  size_t left_ = 0;  // items until the next look
};

Ahead ahead_of(const Catalog& source, uint32_t threads) {
  constexpr size_t kMostItems = 4096;
  const bool server = std::ranges::any_of(
      source.files, [](const File& file) { return io::is_url(file.path); });
  if (!server) return {};
  return {kMostItems, io::remote_memory() / threads, true};
}

// A server failed: what had come from it by then is written, so that --resume
// does not fetch it again.
void keep_arrived(const std::vector<Item>& items, Mover& mover,
                  const std::function<void(const Outcome&)>& done) {
  for (const Item& item : items) {
    if (interrupted()) return;
    if (!mover.has_arrived(item)) continue;
    try {
      const Outcome& outcome = mover.run(item);
      if (!interrupted()) done(outcome);
    } catch (const Error&) {
      continue;  // the first error is the one that is told
    }
  }
}

}  // namespace

std::vector<uint32_t> wrong_crcs(const SourceCrcs& crcs, const Plan& plan,
                                 const Catalog& source, RunOptions options) {
  std::vector<uint32_t> wrong = crcs.wrong(plan);
  options.progress = {};
  for (const auto& [index, problem] :
       check_crcs(source, crcs.unsure(plan), options, &plan))
    wrong.push_back(index);
  return wrong;
}

uint64_t buffer_bytes(const Plan& plan, const RunOptions& options) {
  return reading_of(plan, options).memory();
}

RunResult run(const Plan& plan, const Catalog& source, Output& output,
              const RunOptions& options) {
  check_casts(plan, options);
  const Reading reading = reading_of(plan, options);
  const heap::Unbounded buffers;  // they are counted
  OpenSources open;
  std::vector<Item> items =
      options.part ? options.part->items : cut_items(plan, kItemBytes);
  Sums sums(plan, options.digest);
  if (options.journal && !options.part) {
    take_over(*options.journal, items, sums, output);
    if (options.finished)
      for (const Outcome& outcome : options.journal->done())
        options.finished(outcome.item);
  }
  WorkQueue queue(plan, std::move(items), reading.threads);
  std::optional<SourceCrcs> own;
  if (options.check_crcs && !options.part && !source.crcs.empty())
    own.emplace(source);
  SourceCrcs* const crcs =
      options.part ? options.part->crcs : (own ? &*own : nullptr);
  std::deque<Mover> movers;
  for (uint32_t t = 0; t < reading.threads; ++t)
    movers.emplace_back(plan, source, output, open, options, reading.block,
                        crcs);
  std::deque<DeviceMover> devices;
  if (options.device)
    for (Mover& mover : movers)
      devices.emplace_back(*options.device, plan, mover, options,
                           reading.block);
  for (Mover& mover : movers) {
    if (reading.drops) mover.drop_behind();
    if (reading.direct.on) mover.read_around(reading.direct);
  }
  const auto done = [&](const Outcome& outcome) {
    sums.add(outcome);
    if (outcome.item == kNone) return;
    if (options.part) return options.part->finished(outcome);
    if (options.journal) options.journal->append(outcome);
    if (options.finished) options.finished(outcome.item);
  };
  const Ahead ahead = ahead_of(source, reading.threads);
  const auto work = [&](uint32_t thread) {
    Looks looks(ahead);
    const auto take = [&] {
      const trace::Span span("wait");
      if (!ahead.server) return queue.next(thread);
      return queue.next(thread, [&](const Item& item) {
        return movers[thread].is_there(item);
      });
    };
    while (const auto item = take()) {
      looks.before(*item, thread, queue, movers[thread]);
      if (options.device) {
        devices[thread].run(*item, done);
      } else {
        const Outcome& outcome = movers[thread].run(*item);
        if (!interrupted()) done(outcome);
      }
      if (interrupted()) return;  // the item may be half-done
    }
    if (options.device) devices[thread].finish(done);
  };
  try {
    run_threads(reading.threads, work, [&] { queue.stop(); });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo && ahead.server && !options.device)
      keep_arrived(queue.rest(), movers.front(), done);
    throw;
  }
  if (interrupted()) throw Interrupted("");
  RunResult result = sums.finish(movers);
  if (own) result.wrong_crcs = wrong_crcs(*own, plan, source, options);
  return result;
}

void check_crcs(const RunResult& result, const Plan& plan,
                const Catalog& source) {
  if (result.wrong_crcs.empty()) return;
  const StoredCrc& stored = source.crcs[result.wrong_crcs[0]];
  throw input_error({source.files[stored.file].path, tensor_in(plan, stored)},
                    "record {} (bytes {}-{}) does not have its stored CRC-32 "
                    "{:08x}; {} damaged in all",
                    stored.record, stored.begin, stored.end, stored.crc32,
                    text::counted(result.wrong_crcs.size(), "record"))
      .with_hint(
          "`ckpt verify` lists them with their tensors; --ignore-checksums "
          "copies what is there");
}

void check_replicas(const Plan& plan, const RunResult& result,
                    const Catalog& source) {
  for (const ReplicaCheck& check : plan.replicas) {
    if (result.source[check.first] == result.source[check.second]) continue;
    throw input_error(
        {source.files[check.second_file].path, plan.tensors[check.tensor].name},
        "this copy differs from the one in {}",
        source.files[check.first_file].path)
        .with_hint(
            "one of the two is damaged or stale; --allow-replica-mismatch "
            "takes the first and goes on");
  }
}

}  // namespace ckpt::reshard
