// SPDX-License-Identifier: Apache-2.0
// A device made of memory, for tests. A stream's work is done only when it is
// waited for, so code that forgot to wait can't be right. Each kernel runs as
// loops over blocks and threads.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "reshard/cuda/device.h"
#include "reshard/cuda/kernels.h"

namespace ckpt::cuda {

struct Stream {
  std::vector<std::function<void()>> work;
};

namespace {

void run_rows(const Launch& launch, Arguments<RowsTask> all) {
  for (uint32_t unit = 0; unit < launch.units; ++unit) {
    const RowsTask& task = task_of(all.tasks, all.count, unit);
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      copy_rows(task, all.buffers, unit - task.first_unit, thread);
  }
}

void run_elements(const Launch& launch, Arguments<ElementsTask> all) {
  for (uint32_t unit = 0; unit < launch.units; ++unit) {
    const ElementsTask& task = task_of(all.tasks, all.count, unit);
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      copy_elements(task, all.buffers, unit - task.first_unit, thread);
  }
}

template <uint32_t from, uint32_t to>
void run_casts(const Launch& launch, Arguments<CastTask> all) {
  for (uint32_t unit = 0; unit < launch.units; ++unit) {
    const CastTask& task = task_of(all.tasks, all.count, unit);
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      cast_runs<from, to>(task, all.buffers, unit - task.first_unit, thread);
  }
}

// At a barrier, the loop over threads ends and the next one begins.
template <class T>
void run_tiles(const Launch& launch, Arguments<TileTask> all) {
  const auto memory = std::make_unique<TileMemory<T>>();
  for (uint32_t unit = 0; unit < launch.units; ++unit) {
    const TileTask& task = task_of(all.tasks, all.count, unit);
    const TilePlace place = tile_place<T>(task, unit - task.first_unit);
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      tile_load<T>(task, all.buffers.of(task.in_buffer), place, thread,
                   *memory);
    for (uint32_t thread = 0; thread < kThreads; ++thread)
      tile_store<T>(task, all.buffers.of(task.out_buffer), place, thread,
                    *memory);
  }
}

void run_digests(const Launch& launch, Arguments<DigestTask> all,
                 const DigestTable& table, DigestSum* sums) {
  for (uint32_t unit = 0; unit < launch.units; ++unit) {
    const DigestTask& task = task_of(all.tasks, all.count, unit);
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      const DigestSum part =
          digest_runs(task, table, all.buffers, unit - task.first_unit, thread);
      sums[task.sum].d0 += part.d0;
      sums[task.sum].d1 += part.d1;
    }
  }
}

void run(const Launch& launch, const std::byte* blob, const Buffers& buffers,
         const DigestTable* table, DigestSum* sums) {
  switch (launch.kernel) {
    case Kernel::kRows:
      return run_rows(launch, arguments<RowsTask>(launch, blob, buffers));
    case Kernel::kElements:
      return run_elements(launch,
                          arguments<ElementsTask>(launch, blob, buffers));
    case Kernel::kTile:
      return with_element(launch.variant, [&]<class T>() {
        run_tiles<T>(launch, arguments<TileTask>(launch, blob, buffers));
      });
    case Kernel::kCast:
      return with_pair(launch.variant, [&]<uint32_t from, uint32_t to>() {
        run_casts<from, to>(launch, arguments<CastTask>(launch, blob, buffers));
      });
    case Kernel::kDigest:
      return run_digests(launch, arguments<DigestTask>(launch, blob, buffers),
                         *table, sums);
  }
}

}  // namespace

std::string runtime_version() { return "loops on the host, for tests"; }
uint64_t least_bytes() { return 0; }
uint32_t device_count() { return 2; }
// Each caller has its own, unless a test wants ranks to share one: ranks may be
// threads.
std::string device_name(uint32_t) {
  static std::atomic<uint32_t> asked = 0;
  const char* name = std::getenv("CKPT_CUDA_HOST_NAME");
  return name ? name
              : std::to_string(::getpid()) + "." + std::to_string(asked++);
}
void use_device(uint32_t) {}

std::byte* allocate(uint64_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256}));
}
void release(std::byte* at) noexcept {
  ::operator delete (at, std::align_val_t{256});
}
std::byte* pin(uint64_t bytes) { return allocate(bytes); }
void unpin(std::byte* at) noexcept { release(at); }

Stream* make_stream() { return new Stream; }
void drop_stream(Stream* stream) noexcept { delete stream; }

void upload(std::byte* to, const std::byte* from, uint64_t bytes,
            Stream* stream) {
  stream->work.emplace_back([=] { std::memcpy(to, from, bytes); });
}
void download(std::byte* to, const std::byte* from, uint64_t bytes,
              Stream* stream) {
  upload(to, from, bytes, stream);
}
void zero(std::byte* at, uint64_t bytes, Stream* stream) {
  stream->work.emplace_back([=] { std::memset(at, 0, bytes); });
}
void launch(const Launch& launch, const std::byte* blob, const Buffers& buffers,
            const DigestTable* table, DigestSum* sums, Stream* stream) {
  stream->work.emplace_back([=] { run(launch, blob, buffers, table, sums); });
}
void mark(Stream*) {}
bool reached(Stream* stream) {
  wait(stream);
  return true;
}
void wait(Stream* stream) {
  for (const auto& step : stream->work) step();
  stream->work.clear();
}

}  // namespace ckpt::cuda
