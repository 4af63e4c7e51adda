// SPDX-License-Identifier: Apache-2.0
// The kernels of --device cuda against cudaMemcpy on the device, and the bus:
//
//   cuda_bench              a table; scripts/gpu_bench.sh runs it
//
// GB/s counts what a kernel reads and writes, and likewise for the copy, so "of
// copy" is the same ratio whatever the work.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "reshard/cuda/batch.h"
#include "reshard/cuda/device_cuda.h"

namespace {

using namespace ckpt::cuda;

constexpr uint64_t kBytes = uint64_t{256} << 20;
constexpr uint64_t kMargin = 256;
constexpr int kRepeats = 20;

void require(cudaError_t status) {
  if (status != cudaSuccess)
    throw std::runtime_error(cudaGetErrorString(status));
}

// Seconds of one of kRepeats runs, after two to warm up.
template <class Work>
double seconds_of(cudaStream_t stream, Work work) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  for (int i = 0; i < 2; ++i) work();
  require(cudaEventRecord(begin, stream));
  for (int i = 0; i < kRepeats; ++i) work();
  require(cudaEventRecord(end, stream));
  require(cudaEventSynchronize(end));
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, begin, end));
  require(cudaEventDestroy(begin));
  require(cudaEventDestroy(end));
  return milliseconds / 1e3 / kRepeats;
}

class Bench {
 public:
  Bench() : stream_(make_stream()) {
    for (std::byte*& at : device_) {
      at = allocate(2 * kBytes + 2 * kMargin);
      require(cudaMemset(at, 0x3C, 2 * kBytes + 2 * kMargin));
      at += kMargin;
    }
    tasks_ = allocate(1 << 20);
    sums_ = reinterpret_cast<DigestSum*>(allocate(4096));
    const DigestTable table = make_table();
    table_ = reinterpret_cast<DigestTable*>(allocate(sizeof table));
    require(cudaMemcpy(table_, &table, sizeof table, cudaMemcpyHostToDevice));
  }

  void copy() {
    const double seconds = seconds_of(stream_->stream, [&] {
      require(cudaMemcpyAsync(device_[1], device_[0], kBytes,
                              cudaMemcpyDeviceToDevice, stream_->stream));
    });
    copy_ = 2 * static_cast<double>(kBytes) / seconds;
    std::printf("%-34s %8.1f GB/s\n", "cudaMemcpy on the device", copy_ / 1e9);
  }

  void show(const std::string& name, const CkptCudaCopy* copy,
            const CkptCudaDigest* digest, uint64_t bytes, int goal) {
    const CkptCudaWork work{.in_bytes = 0,
                            .out_bytes = 0,
                            .copies = copy,
                            .copy_count = copy ? 1u : 0u,
                            .digests = digest,
                            .digest_count = digest ? 1u : 0u};
    const Batch batch = make_batch(work);
    require(cudaMemcpy(tasks_, batch.blob.data(), batch.blob.size(),
                       cudaMemcpyHostToDevice));
    const Buffers buffers{device_[0], device_[1], device_[1]};
    const double seconds = seconds_of(stream_->stream, [&] {
      for (const Launch& one : batch.launches)
        launch(one, tasks_, buffers, table_, sums_, stream_);
    });
    const double rate = static_cast<double>(bytes) / seconds;
    std::printf("%-34s %8.1f GB/s  %5.1f %% of copy", name.c_str(), rate / 1e9,
                100 * rate / copy_);
    if (goal) std::printf("  (goal %d %%)", goal);
    std::printf("\n");
  }

  void bus() {
    std::byte* const up = pin(kBytes);
    std::byte* const down = pin(kBytes);
    Stream* const other = make_stream();
    const double to = seconds_of(
        stream_->stream, [&] { upload(device_[0], up, kBytes, stream_); });
    const double from = seconds_of(
        stream_->stream, [&] { download(down, device_[1], kBytes, stream_); });
    // The upload's stream is timed while the other one is busy.
    const double both = seconds_of(stream_->stream, [&] {
      upload(device_[0], up, kBytes, stream_);
      download(down, device_[1], kBytes, other);
    });
    const auto rate = [](double s) {
      return static_cast<double>(kBytes) / s / 1e9;
    };
    std::printf("pinned upload, download            %8.1f GB/s %8.1f GB/s\n",
                rate(to), rate(from));
    std::printf("upload while downloading           %8.1f GB/s\n", rate(both));
    wait(other);
    drop_stream(other);
    unpin(up);
    unpin(down);
  }

 private:
  Stream* stream_;
  std::byte* device_[2];
  std::byte* tasks_;
  DigestTable* table_;
  DigestSum* sums_;
  double copy_ = 1;
};

CkptCudaCopy plain(uint32_t element) {
  CkptCudaCopy copy{};
  copy.in_buffer = CKPT_CUDA_IN;
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.element = element;
  return copy;
}

void dimension(CkptCudaCopy& copy, uint64_t size, uint64_t in, uint64_t out) {
  copy.shape[copy.dims] = static_cast<uint32_t>(size);
  copy.in_stride[copy.dims] = in;
  copy.out_stride[copy.dims] = out;
  ++copy.dims;
}

// Packs half of a matrix's columns into rows without gaps.
void pack(Bench& bench, uint64_t row, uint64_t skew) {
  CkptCudaCopy copy = plain(1);
  copy.in = skew;
  dimension(copy, kBytes / row, 2 * row, row);
  dimension(copy, row, 1, 1);
  const int goal = row >= 2048 && skew == 0 ? 80 : row >= 256 ? 70 : 40;
  bench.show("pack rows of " + std::to_string(row) +
                 (skew ? " B, " + std::to_string(skew) + " B off" : " B"),
             &copy, nullptr, 2 * kBytes, goal);
}

void cast(Bench& bench, const char* name, uint32_t from, uint32_t to,
          uint64_t from_size, uint64_t to_size, int goal) {
  CkptCudaCopy copy = plain(static_cast<uint32_t>(from_size));
  copy.from = from;
  copy.to = to;
  const uint64_t count = kBytes / 8;
  dimension(copy, count, from_size, to_size);
  bench.show(name, &copy, nullptr, count * (from_size + to_size), goal);
}

void transpose(Bench& bench, uint32_t element) {
  CkptCudaCopy copy = plain(element);
  const uint64_t side = 5000;  // not a power of two or a multiple of a tile
  dimension(copy, side, element, side * element);
  dimension(copy, side, side * element, element);
  bench.show("transpose of " + std::to_string(element) + " B elements", &copy,
             nullptr, 2 * side * side * element, 60);
}

void digest(Bench& bench, uint64_t skew) {
  CkptCudaDigest digest{};
  digest.buffer = CKPT_CUDA_IN;
  digest.at = skew;
  digest.content = skew;
  digest.bytes = static_cast<uint32_t>(kBytes);
  bench.show(skew ? "digest, 3 B off" : "digest", nullptr, &digest, kBytes, 60);
}

void run() {
  if (device_count() == 0) throw std::runtime_error("no GPU");
  use_device(0);
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors\n", properties.name,
              properties.multiProcessorCount);
  Bench bench;
  bench.bus();
  bench.copy();
  for (const uint64_t row : {32, 64, 256, 2048, 65536}) pack(bench, row, 0);
  for (const uint64_t row : {256, 2048}) pack(bench, row, 3);
  cast(bench, "cast f32 to bf16", CKPT_CUDA_F32, CKPT_CUDA_BF16, 4, 2, 75);
  cast(bench, "cast bf16 to f32", CKPT_CUDA_BF16, CKPT_CUDA_F32, 2, 4, 0);
  cast(bench, "cast f32 to f8_e4m3", CKPT_CUDA_F32, CKPT_CUDA_E4M3, 4, 1, 0);
  cast(bench, "cast f16 to f8_e8m0 (any pair)", CKPT_CUDA_F16, CKPT_CUDA_E8M0,
       2, 1, 0);
  for (const uint32_t element : {1, 2, 4, 8}) transpose(bench, element);
  digest(bench, 0);
  digest(bench, 3);
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "skipped: %s\n", error.what());
    return 77;
  }
}
