// SPDX-License-Identifier: Apache-2.0
// Tensors of a few bytes that the test gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ckpt/ckpt.h"

namespace ckpt::test {

inline TensorData tensor(Shape shape, std::vector<uint8_t> values) {
  TensorData data{DType::u8, std::move(shape), {}};
  for (const uint8_t value : values)
    data.bytes.push_back(static_cast<std::byte>(value));
  return data;
}

inline std::vector<uint8_t> values(const TensorData& data) {
  std::vector<uint8_t> result;
  for (const std::byte byte : data.bytes)
    result.push_back(static_cast<uint8_t>(byte));
  return result;
}

inline std::vector<uint8_t> range(uint8_t begin, uint8_t end) {
  std::vector<uint8_t> result(end - begin);
  std::iota(result.begin(), result.end(), begin);
  return result;
}

}  // namespace ckpt::test
