// SPDX-License-Identifier: Apache-2.0
// Copies and digests of the CUDA module.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "ckpt/error.h"
#include "lib/hash/digest.h"
#include "tests/reshard/cuda_support.h"

namespace ckpt::reshard {
namespace {

using test::Bytes;
using test::noise;
using test::OneSlot;
using test::Random;

// Calls visit(in, out) with the byte offsets of every element of a copy.
template <class Visit>
void each_element(const CkptCudaCopy& copy, Visit visit) {
  uint64_t count = 1;
  for (uint32_t d = 0; d < copy.dims; ++d) count *= copy.shape[d];
  for (uint64_t n = 0; n < count; ++n) {
    uint64_t rest = n, in = copy.in, out = copy.out;
    for (uint32_t d = copy.dims; d-- > 0;) {
      in += rest % copy.shape[d] * copy.in_stride[d];
      out += rest % copy.shape[d] * copy.out_stride[d];
      rest /= copy.shape[d];
    }
    visit(in, out);
  }
}

// A box of elements in any order of the source's dimensions, with occasional
// gaps between rows; packed in the target.
CkptCudaCopy random_copy(Random& random, uint32_t element, uint64_t room) {
  CkptCudaCopy copy{};
  copy.in_buffer = CKPT_CUDA_IN;
  copy.out_buffer = CKPT_CUDA_OUT;
  copy.element = element;
  copy.dims = static_cast<uint32_t>(random() % 5);
  uint64_t left = 1 + random() % (room / 4 / element);
  for (uint32_t d = 0; d < copy.dims; ++d) {
    copy.shape[d] = static_cast<uint32_t>(
        1 + random() % std::min<uint64_t>(left, 1 + random() % 400));
    left = std::max<uint64_t>(1, left / copy.shape[d]);
  }
  std::vector<uint32_t> order(copy.dims);
  for (uint32_t d = 0; d < copy.dims; ++d) order[d] = d;
  if (random() % 3) std::ranges::shuffle(order, random);
  uint64_t in = element, out = element;
  for (uint32_t k = copy.dims; k-- > 0;) {
    copy.in_stride[order[k]] = in;
    in *= copy.shape[order[k]];
    if (random() % 4 == 0) in += random() % 2 ? 16 : random() % 7 * element;
    copy.out_stride[k] = out;
    out *= copy.shape[k];
    if (random() % 8 == 0) out += random() % 2 ? 16 : random() % 7 * element;
  }
  const uint64_t unit = random() % 2 ? element : 1;
  copy.in = random() % 40 * unit;
  copy.out = random() % 40 * unit;
  return copy;
}

uint64_t end_of(const CkptCudaCopy& copy, bool in) {
  uint64_t end = (in ? copy.in : copy.out) + copy.element;
  for (uint32_t d = 0; d < copy.dims; ++d)
    end += (copy.shape[d] - 1) * (in ? copy.in_stride[d] : copy.out_stride[d]);
  return end;
}

// If the source begins or ends in a mapped file, a load beyond it would fault.
// The sanitizers' build sees it in the host's memory.
constexpr uint64_t kRoom = 256 << 10;

}  // namespace

TEST_CASE("cuda: boxes of elements of every size, order and alignment") {
  const CudaModule* module = test::device();
  if (!module) return;
  OneSlot slot(*module, kRoom);
  Random random(1);
  int done = 0;
  for (int round = 0; round < 1500; ++round) {
    CAPTURE(round);
    const uint32_t sizes[] = {1, 2, 4, 8, 16, 3, 12};
    const CkptCudaCopy copy = random_copy(random, sizes[random() % 7], kRoom);
    const uint64_t in_bytes = end_of(copy, true);
    const uint64_t out_bytes = end_of(copy, false);
    if (in_bytes > kRoom || out_bytes > kRoom) continue;
    const Bytes in = noise(random, in_bytes);
    const Bytes found = slot.run(in, out_bytes, {copy});
    bool same = true;
    each_element(copy, [&](uint64_t from, uint64_t to) {
      same &= std::memcmp(&in[from], &found[to], copy.element) == 0;
    });
    CHECK(same);
    ++done;
  }
  CHECK(done > 1000);
}

TEST_CASE("cuda: neighbours of what is written stay as they were") {
  const CudaModule* module = test::device();
  if (!module) return;
  OneSlot slot(*module, kRoom);
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    // Rows that interleave with others: a vector may hold parts of both.
    const uint32_t rows = 1 + static_cast<uint32_t>(random() % 50);
    const uint32_t a = 1 + static_cast<uint32_t>(random() % 70);
    const uint32_t b = 1 + static_cast<uint32_t>(random() % 70);
    CkptCudaCopy copy{};
    copy.out_buffer = CKPT_CUDA_OUT;
    copy.element = 1;
    copy.dims = 2;
    copy.shape[0] = rows;
    copy.shape[1] = a;
    copy.in_stride[0] = a;
    copy.out_stride[0] = a + b;
    copy.in_stride[1] = copy.out_stride[1] = 1;
    CkptCudaCopy other = copy;
    other.in = uint64_t{rows} * a;
    other.out = a;
    other.shape[1] = b;
    other.in_stride[0] = b;
    const Bytes in = noise(random, uint64_t{rows} * (a + b));
    const Bytes found = slot.run(in, in.size(), {copy, other});
    bool same = true;
    for (const CkptCudaCopy* one : {&copy, &other})
      each_element(*one, [&](uint64_t from, uint64_t to) {
        same &= in[from] == found[to];
      });
    CHECK(same);
  }
}

TEST_CASE("cuda: digests are those of the processor") {
  const CudaModule* module = test::device();
  if (!module) return;
  OneSlot slot(*module, kRoom);
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    CkptCudaDigest digest{};
    digest.buffer = CKPT_CUDA_IN;
    digest.at = random() % 50;
    digest.bytes =
        static_cast<uint32_t>(1 + random() % (random() % 4 ? 300 : 60'000));
    digest.dims = 1;
    const uint64_t most = (kRoom - 100) / digest.bytes;
    digest.shape[0] =
        static_cast<uint32_t>(1 + random() % std::min<uint64_t>(most, 300));
    digest.stride[0] =
        digest.bytes +
        (most > 2 * digest.shape[0] ? random() % digest.bytes : 0);
    digest.content = random() % 3 ? random() % 100'000 : uint64_t{4} * random();
    digest.content %= uint64_t{1} << 60;
    digest.content_stride[0] =
        random() % 2 ? digest.bytes : digest.bytes + random() % 9000;
    const Bytes in =
        noise(random, digest.at + (digest.shape[0] - 1) * digest.stride[0] +
                          digest.bytes);
    std::vector<CkptCudaSum> sums;
    slot.run(in, 0, {}, {digest, digest}, &sums);
    const Digest expected = digest_rows(
        digest.content, digest.content_stride[0], in.data() + digest.at,
        digest.stride[0], digest.bytes, digest.shape[0]);
    for (const CkptCudaSum& sum : sums) {
      CHECK(sum.d0 == expected.d0);
      CHECK(sum.d1 == expected.d1);
    }
  }
}

TEST_CASE("cuda: what is no work of a plan is refused") {
  const CudaModule* module = test::device();
  if (!module) return;
  OneSlot slot(*module, 4096);
  CHECK_THROWS_WITH_AS(slot.run({}, 5000, {}),
                       doctest::Contains("larger than its buffers"), Error);
  CkptCudaCopy copy{};
  copy.from = CKPT_CUDA_F32;
  copy.to = CKPT_CUDA_I8;
  CHECK_THROWS_AS(slot.run({}, 0, {copy}), Error);
  copy = {};
  copy.dims = 9;
  CHECK_THROWS_AS(slot.run({}, 0, {copy}), Error);
}

}  // namespace ckpt::reshard
