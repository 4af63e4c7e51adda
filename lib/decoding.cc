// SPDX-License-Identifier: Apache-2.0
#include "lib/decoding.h"

#include <deque>
#include <mutex>

namespace ckpt {

std::vector<const Tensor*> parts_of(const Decoding& made) {
  std::vector<const Tensor*> parts;
  for (const Tensor* part :
       {&made.codes, &made.scales, &made.zeros, &made.order, &made.outer})
    if (!part->name.empty()) parts.push_back(part);
  return parts;
}

File decoded_file(std::string path, uint64_t size, Decoding decoding) {
  static std::mutex mutex;
  static auto& kept = *new std::deque<Decoding>();
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(decoding));
  return {.path = std::move(path),
          .size = size,
          .codec = Codec::kMemory,
          .packed_offset = 0,
          .packed_size = 0,
          .memory = reinterpret_cast<const std::byte*>(&kept.back()),
          .fill = std::string(kDecodedMark)};
}

}  // namespace ckpt
