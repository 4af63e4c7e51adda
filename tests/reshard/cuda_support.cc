// SPDX-License-Identifier: Apache-2.0
#include "tests/reshard/cuda_support.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iostream>

#include "ckpt/error.h"

namespace ckpt::test {

const reshard::CudaModule* device() {
  try {
    return &reshard::CudaModule::get();
  } catch (const Error& error) {
    std::cout << "skipped: " << error.what() << "\n";
    return nullptr;
  }
}

Bytes noise(Random& random, size_t count) {
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

Bytes OneSlot::run(const Bytes& in, uint64_t out_bytes,
                   const std::vector<CkptCudaCopy>& copies,
                   const std::vector<CkptCudaDigest>& digests,
                   std::vector<CkptCudaSum>* sums) {
  const CkptCudaApi& api = module_.api();
  REQUIRE(in.size() <= bytes_);
  std::ranges::copy(in, static_cast<std::byte*>(api.ring_in(ring_.get(), 0)));
  const CkptCudaWork work{.in_bytes = in.size(),
                          .out_bytes = out_bytes,
                          .copies = copies.data(),
                          .copy_count = copies.size(),
                          .digests = digests.data(),
                          .digest_count = digests.size()};
  std::vector<CkptCudaSum> found(digests.size());
  module_.require(api.ring_submit(ring_.get(), 0, &work));
  module_.require(api.ring_wait(ring_.get(), 0, found.data()));
  if (sums) *sums = found;
  const auto* out = static_cast<const std::byte*>(api.ring_out(ring_.get(), 0));
  return {out, out + out_bytes};
}

}  // namespace ckpt::test
