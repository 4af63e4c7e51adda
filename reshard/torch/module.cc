// SPDX-License-Identifier: Apache-2.0
// The only file that sees libtorch.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "reshard/torch/abi.h"

namespace {

using at::ScalarType;

struct NamedType {
  std::string_view name;
  ScalarType type;
};

// Quantized types, bits and types that pack two values into a byte are missing:
// torch either can't cast them or means something else by it.
constexpr NamedType kTypes[] = {
    {"float64", ScalarType::Double},
    {"float32", ScalarType::Float},
    {"float16", ScalarType::Half},
    {"bfloat16", ScalarType::BFloat16},
    {"float8_e4m3fn", ScalarType::Float8_e4m3fn},
    {"float8_e5m2", ScalarType::Float8_e5m2},
    {"float8_e4m3fnuz", ScalarType::Float8_e4m3fnuz},
    {"float8_e5m2fnuz", ScalarType::Float8_e5m2fnuz},
    {"float8_e8m0fnu", ScalarType::Float8_e8m0fnu},
    {"int64", ScalarType::Long},
    {"int32", ScalarType::Int},
    {"int16", ScalarType::Short},
    {"int8", ScalarType::Char},
    {"uint64", ScalarType::UInt64},
    {"uint32", ScalarType::UInt32},
    {"uint16", ScalarType::UInt16},
    {"uint8", ScalarType::Byte},
    {"bool", ScalarType::Bool},
    {"complex128", ScalarType::ComplexDouble},
    {"complex64", ScalarType::ComplexFloat},
    {"complex32", ScalarType::ComplexHalf},
};

thread_local std::string last_error;

// Runs work(); turns an exception of torch into a status and a message.
template <class Work>
int32_t guarded(Work work) {
  try {
    const c10::InferenceMode no_autograd;
    work();
    return 0;
  } catch (const c10::Error& error) {
    last_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

ScalarType type_of(int32_t number) {
  TORCH_CHECK(number >= 0 && number < static_cast<int32_t>(std::size(kTypes)),
              "no dtype has number ", number);
  return kTypes[number].type;
}

at::Tensor view(void* at, ScalarType type, uint64_t count) {
  return at::from_blob(at, {static_cast<int64_t>(count)},
                       at::TensorOptions().dtype(type));
}
// Used only as the source of a copy.
at::Tensor view(const void* at, ScalarType type, uint64_t count) {
  return view(const_cast<void*>(at), type, count);
}

bool is_aligned(const void* at, ScalarType type) {
  // Complex numbers need only their parts' alignment; being stricter is
  // harmless.
  return reinterpret_cast<uintptr_t>(at) % c10::elementSize(type) == 0;
}

constexpr uint64_t kChunk = 4096;  // elements
struct Bounce {                    // room for a chunk of any type; not cleared
  alignas(16) char bytes[kChunk * 16];
};

// Elements [begin, begin + n) of a run, aligned: in place if they already are.
const void* aligned(const void* from, ScalarType type, uint64_t begin,
                    uint64_t n, Bounce& bounce) {
  const size_t size = c10::elementSize(type);
  const char* at = static_cast<const char*>(from) + begin * size;
  if (is_aligned(at, type)) return at;
  std::memcpy(bounce.bytes, at, n * size);
  return bounce.bytes;
}

void cast_chunks(ScalarType from, ScalarType to, const void* in, void* out,
                 uint64_t count) {
  Bounce source;
  Bounce target;
  const size_t size = c10::elementSize(to);
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t n = std::min(kChunk, count - begin);
    view(target.bytes, to, n)
        .copy_(view(aligned(in, from, begin, n, source), from, n));
    std::memcpy(static_cast<char*>(out) + begin * size, target.bytes, n * size);
  }
}

int32_t cast(int32_t from, int32_t to, const void* in, void* out,
             uint64_t count) {
  return guarded([&] {
    const ScalarType source = type_of(from);
    const ScalarType target = type_of(to);
    if (count == 0) return;
    if (is_aligned(in, source) && is_aligned(out, target))
      view(out, target, count).copy_(view(in, source, count));
    else
      cast_chunks(source, target, in, out, count);
  });
}

int32_t dtype(const char* torch_name) {
  const auto found =
      std::ranges::find(kTypes, std::string_view(torch_name), &NamedType::name);
  if (found == std::end(kTypes)) return -1;
  return static_cast<int32_t>(found - std::begin(kTypes));
}

struct Svd {
  at::Tensor u, s, vh;
};

// torch.svd_lowrank (Halko, Martinsson and Tropp, algorithm 5.1), which C++ has
// not got: a few directions more than are asked for, and four iterations.
Svd svd_lowrank(const at::Tensor& matrix, int64_t rank) {
  constexpr int64_t kMore = 16;
  constexpr int kIterations = 4;
  constexpr uint64_t kSeed = 0;
  const auto orthogonal = [](const at::Tensor& columns) {
    return std::get<0>(at::linalg_qr(columns));
  };
  const at::Tensor turned = matrix.t();
  at::Tensor q = orthogonal(at::matmul(
      matrix, at::randn({matrix.size(1), rank + kMore},
                        at::make_generator<at::CPUGeneratorImpl>(kSeed))));
  for (int i = 0; i < kIterations; ++i)
    q = orthogonal(at::matmul(matrix, orthogonal(at::matmul(turned, q))));
  const auto [u, s, vh] = at::linalg_svd(at::matmul(q.t(), matrix), false);
  return {at::matmul(q, u), s, vh};
}

Svd svd(const at::Tensor& matrix, int64_t rank) {
  constexpr int64_t kSmall = 1024;
  const int64_t least = std::min(matrix.size(0), matrix.size(1));
  if (least > kSmall && rank < least / 8) return svd_lowrank(matrix, rank);
  const auto [u, s, vh] = at::linalg_svd(matrix, false);
  return {u, s, vh};
}

double norm_of(const at::Tensor& matrix) {
  return at::linalg_vector_norm(matrix, 2, std::nullopt, false, at::kDouble)
      .item<double>();
}

void copy_out(const at::Tensor& from, void* out) {
  const at::Tensor whole = from.contiguous();
  std::memcpy(out, whole.const_data_ptr(), whole.nbytes());
}

// The caller's buffer.
at::Tensor matrix_view(const float* matrix, uint64_t rows, uint64_t columns) {
  return view(matrix, at::kFloat, rows * columns)
      .view({static_cast<int64_t>(rows), static_cast<int64_t>(columns)});
}

int32_t low_rank(const float* matrix, uint64_t rows, uint64_t columns,
                 uint64_t rank, int32_t to, void* left, void* right,
                 double norms[2], uint32_t threads) {
  at::set_num_threads(static_cast<int>(std::max(threads, 1U)));
  const int32_t status = guarded([&] {
    const at::Tensor whole = matrix_view(matrix, rows, columns);
    const auto kept = static_cast<int64_t>(rank);
    const Svd parts = svd(whole, kept);
    const at::Tensor roots = parts.s.narrow(0, 0, kept).sqrt();
    const at::Tensor b =
        (parts.u.narrow(1, 0, kept) * roots).to(type_of(to)).contiguous();
    const at::Tensor a = (parts.vh.narrow(0, 0, kept) * roots.unsqueeze(1))
                             .to(type_of(to))
                             .contiguous();
    copy_out(b, left);
    copy_out(a, right);
    norms[0] =
        norm_of(at::addmm(whole, b.to(at::kFloat), a.to(at::kFloat), 1, -1));
    norms[1] = norm_of(whole);
  });
  at::set_num_threads(1);
  return status;
}

int32_t singular_values(const float* matrix, uint64_t rows, uint64_t columns,
                        float* values, uint32_t threads) {
  at::set_num_threads(static_cast<int>(std::max(threads, 1U)));
  const int32_t status = guarded([&] {
    copy_out(at::linalg_svdvals(matrix_view(matrix, rows, columns)), values);
  });
  at::set_num_threads(1);
  return status;
}

const char* error() { return last_error.c_str(); }

}  // namespace

extern "C" [[gnu::visibility("default")]] const CkptTorchApi* ckpt_torch_api() {
  static const CkptTorchApi api = [] {
    // The caller already has a thread per core; torch must not add any.
    at::set_num_threads(1);
    return CkptTorchApi{.abi = CKPT_TORCH_ABI,
                        .torch_version = TORCH_VERSION,
                        .dtype = dtype,
                        .cast = cast,
                        .error = error,
                        .low_rank = low_rank,
                        .singular_values = singular_values};
  }();
  return &api;
}
