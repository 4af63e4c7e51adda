// SPDX-License-Identifier: Apache-2.0
// The device of a ring, with CUDA.
#include <stdexcept>

#include "reshard/cuda/device_cuda.h"
#include "reshard/cuda/kernels.h"

namespace ckpt::cuda {

namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " +
                             cudaGetErrorString(status));
}

__global__ void __launch_bounds__(kThreads)
    rows_kernel(Arguments<RowsTask> all) {
  const RowsTask& task = task_of(all.tasks, all.count, blockIdx.x);
  copy_rows(task, all.buffers, blockIdx.x - task.first_unit, threadIdx.x);
}

__global__ void __launch_bounds__(kThreads)
    elements_kernel(Arguments<ElementsTask> all) {
  const ElementsTask& task = task_of(all.tasks, all.count, blockIdx.x);
  copy_elements(task, all.buffers, blockIdx.x - task.first_unit, threadIdx.x);
}

template <uint32_t from, uint32_t to>
__global__ void __launch_bounds__(kThreads)
    cast_kernel(Arguments<CastTask> all) {
  const CastTask& task = task_of(all.tasks, all.count, blockIdx.x);
  cast_runs<from, to>(task, all.buffers, blockIdx.x - task.first_unit,
                      threadIdx.x);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(Arguments<TileTask> all) {
  __shared__ TileMemory<T> memory;
  const TileTask& task = task_of(all.tasks, all.count, blockIdx.x);
  const TilePlace place = tile_place<T>(task, blockIdx.x - task.first_unit);
  tile_load<T>(task, all.buffers.of(task.in_buffer), place, threadIdx.x,
               memory);
  __syncthreads();
  tile_store<T>(task, all.buffers.of(task.out_buffer), place, threadIdx.x,
                memory);
}

// Sums of a block of threads are combined in a warp's registers, then in shared
// memory; each block makes one addition to the task's sum.
__global__ void __launch_bounds__(kThreads)
    digest_kernel(Arguments<DigestTask> all, const DigestTable* table,
                  DigestSum* sums) {
  __shared__ DigestSum parts[kThreads / 32];
  const DigestTask& task = task_of(all.tasks, all.count, blockIdx.x);
  DigestSum sum = digest_runs(task, *table, all.buffers,
                              blockIdx.x - task.first_unit, threadIdx.x);
  for (int step = 16; step > 0; step /= 2) {
    sum.d0 +=
        __shfl_down_sync(~0u, static_cast<unsigned long long>(sum.d0), step);
    sum.d1 +=
        __shfl_down_sync(~0u, static_cast<unsigned long long>(sum.d1), step);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (uint32_t w = 1; w < kThreads / 32; ++w) {
    sum.d0 += parts[w].d0;
    sum.d1 += parts[w].d1;
  }
  using Word = unsigned long long;
  atomicAdd(reinterpret_cast<Word*>(&sums[task.sum].d0), Word{sum.d0});
  atomicAdd(reinterpret_cast<Word*>(&sums[task.sum].d1), Word{sum.d1});
}

}  // namespace

std::string runtime_version() {
  int version = 0;
  cudaRuntimeGetVersion(&version);
  return "CUDA " + std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

// Below this, starting the transfers and kernels takes longer than the work.
uint64_t least_bytes() { return 64 << 10; }

uint32_t device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    throw std::runtime_error(
        "no CUDA driver on this machine, or one that is too old");
  if (status == cudaErrorNoDevice)
    throw std::runtime_error("no GPU is visible");
  require(status, "asking for GPUs");
  return static_cast<uint32_t>(count);
}

std::string device_name(uint32_t device) {
  char name[CKPT_CUDA_NAME_BYTES] = {};
  require(
      cudaDeviceGetPCIBusId(name, sizeof name, static_cast<int>(device)),
      "asking for the GPU's name");
  return name;
}
void use_device(uint32_t device) {
  require(cudaSetDevice(static_cast<int>(device)), "choosing a GPU");
}

std::byte* allocate(uint64_t bytes) {
  void* at = nullptr;
  require(cudaMalloc(&at, bytes), "allocating device memory");
  return static_cast<std::byte*>(at);
}
void release(std::byte* at) noexcept { cudaFree(at); }

std::byte* pin(uint64_t bytes) {
  void* at = nullptr;
  require(cudaHostAlloc(&at, bytes, cudaHostAllocPortable),
          "allocating pinned memory");
  return static_cast<std::byte*>(at);
}
void unpin(std::byte* at) noexcept { cudaFreeHost(at); }

Stream* make_stream() {
  auto* made = new Stream;
  try {
    require(cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking),
            "making a stream");
    // Waiting threads sleep: the cores have files to read and write.
    require(cudaEventCreateWithFlags(
                &made->done, cudaEventBlockingSync | cudaEventDisableTiming),
            "making an event");
  } catch (...) {
    drop_stream(made);
    throw;
  }
  return made;
}
void drop_stream(Stream* stream) noexcept {
  if (stream->done) cudaEventDestroy(stream->done);
  if (stream->stream) cudaStreamDestroy(stream->stream);
  delete stream;
}

void upload(std::byte* to, const std::byte* from, uint64_t bytes,
            Stream* stream) {
  require(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream->stream),
      "uploading");
}
void download(std::byte* to, const std::byte* from, uint64_t bytes,
              Stream* stream) {
  require(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream->stream),
      "downloading");
}
void zero(std::byte* at, uint64_t bytes, Stream* stream) {
  require(cudaMemsetAsync(at, 0, bytes, stream->stream), "clearing");
}

void launch(const Launch& launch, const std::byte* blob, const Buffers& buffers,
            const DigestTable* table, DigestSum* sums, Stream* stream) {
  const cudaStream_t on = stream->stream;
  switch (launch.kernel) {
    case Kernel::kRows:
      rows_kernel<<<launch.units, kThreads, 0, on>>>(
          arguments<RowsTask>(launch, blob, buffers));
      break;
    case Kernel::kElements:
      elements_kernel<<<launch.units, kThreads, 0, on>>>(
          arguments<ElementsTask>(launch, blob, buffers));
      break;
    case Kernel::kTile:
      with_element(launch.variant, [&]<class T>() {
        tile_kernel<T><<<launch.units, kThreads, 0, on>>>(
            arguments<TileTask>(launch, blob, buffers));
      });
      break;
    case Kernel::kCast:
      with_pair(launch.variant, [&]<uint32_t from, uint32_t to>() {
        cast_kernel<from, to><<<launch.units, kThreads, 0, on>>>(
            arguments<CastTask>(launch, blob, buffers));
      });
      break;
    case Kernel::kDigest:
      digest_kernel<<<launch.units, kThreads, 0, on>>>(
          arguments<DigestTask>(launch, blob, buffers), table, sums);
      break;
  }
  require(cudaGetLastError(), "starting a kernel");
}

void mark(Stream* stream) {
  require(cudaEventRecord(stream->done, stream->stream), "marking the end");
}
bool reached(Stream* stream) {
  const cudaError_t status = cudaEventQuery(stream->done);
  if (status == cudaErrorNotReady) return false;
  require(status, "waiting for the GPU");
  return true;
}
void wait(Stream* stream) {
  mark(stream);
  require(cudaEventSynchronize(stream->done), "waiting for the GPU");
}

}  // namespace ckpt::cuda
