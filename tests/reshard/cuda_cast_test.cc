// SPDX-License-Identifier: Apache-2.0
// Casts of the CUDA module against torch's.
#include <doctest/doctest.h>

#include <algorithm>

#include "ckpt/catalog.h"
#include "tests/reshard/cuda_support.h"
#include "tests/support/casts.h"

namespace ckpt::reshard {
namespace {

using test::Bytes;
using test::OneSlot;
using test::Random;

CkptCudaCopy cast_copy(const CudaModule::Cast& cast, uint64_t count,
                       uint64_t from, uint64_t to) {
  CkptCudaCopy copy{};
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.from = cast.from;
  copy.to = cast.to;
  copy.element = static_cast<uint32_t>(from);
  copy.dims = 1;
  copy.shape[0] = static_cast<uint32_t>(count);
  copy.in_stride[0] = from;
  copy.out_stride[0] = to;
  return copy;
}

// Index of the first element that differs, or count.
uint64_t first_difference(const Bytes& a, const Bytes& b, uint64_t size) {
  for (uint64_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return i / size;
  return a.size() / size;
}

}  // namespace

TEST_CASE("cuda: casts have PyTorch's bits, NaNs and all") {
  const CudaModule* module = test::device();
  if (!module) return;
  if (!test::have_torch()) return;
  Random random(4);
  int pairs = 0;
  for (const DType from : test::kNumbers) {
    const Bytes in = test::cast_values(from, random);
    const uint64_t count = in.size() / element_size(from);
    OneSlot slot(*module, std::max<uint64_t>(in.size(), count * 8) + 64);
    for (const DType to : test::kNumbers) {
      const auto cast = module->cast(from, to);
      if (from == to || !cast) continue;
      CAPTURE(name(from));
      CAPTURE(name(to));
      const uint64_t size = element_size(to);
      const Bytes expected = test::cast_by_torch(from, to, in);
      CkptCudaCopy copy = cast_copy(*cast, count, element_size(from), size);
      const Bytes found = slot.run(in, count * size, {copy});
      const uint64_t at = first_difference(expected, found, size);
      CAPTURE(at);
      CHECK(at == count);
      // From odd offsets, where no vector fits.
      copy.in = 1;
      copy.out = 3;
      Bytes shifted(in.size() + 1);
      std::ranges::copy(in, shifted.begin() + 1);
      const Bytes moved = slot.run(shifted, count * size + 3, {copy});
      CHECK(std::equal(expected.begin(), expected.end(), moved.begin() + 3));
      ++pairs;
    }
  }
  CHECK(pairs == 234);  // all of 18 types except floats to integers
  CHECK(!module->cast(DType::f32, DType::i32));
  CHECK(!module->cast(DType::c64, DType::c128));
}

}  // namespace ckpt::reshard
