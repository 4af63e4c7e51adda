// SPDX-License-Identifier: Apache-2.0
#include "lib/hash/sha256.h"

#include "lib/hash/sha256_kernel.h"

namespace ckpt {

void Sha256::blocks(const std::byte* bytes, size_t count) {
  static const sha256::Kernel& fastest = sha256::kernels().back();
  fastest.run(state_, bytes, count);
}

}  // namespace ckpt
