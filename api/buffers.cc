// SPDX-License-Identifier: Apache-2.0
#include "api/buffers.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <optional>

#include "ckpt/error.h"
#include "models/buffers.h"
#include "reshard/numbers/numbers.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kTile = uint64_t{4} << 20;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::optional<double> value_at(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::f64:
      return load<double>(at);
    case DType::f32:
      return load<float>(at);
    case DType::f16:
      return std::bit_cast<float>(numbers::f16_to_float(load<uint16_t>(at)));
    case DType::bf16:
      return std::bit_cast<float>(numbers::bf16_to_float(load<uint16_t>(at)));
    case DType::bool_:
    case DType::u8:
      return load<uint8_t>(at);
    case DType::i64:
      return static_cast<double>(load<int64_t>(at));
    default:
      return std::nullopt;
  }
}

Dims place_of(const Box& tile, uint64_t index) {
  Dims at = tile.offset;
  for (size_t d = at.size(); d-- > 0;) {
    at[d] += index % tile.shape[d];
    index /= tile.shape[d];
  }
  return at;
}

void prove(const Catalog& catalog, const Redundant& one, double theta) {
  const auto proof = families::buffer_proof(one.tensor, theta);
  if (!proof)
    throw bug_error({catalog.path, one.tensor.name}, "no buffer is left out");
  reshard::RunOptions reading;
  reading.threads = 1;
  reading.max_mem = 4 * kTile;
  reading.digest = false;
  const uint64_t item = element_size(one.tensor.dtype);
  for (const Box& tile : reshard::tiles(one.tensor, kTile)) {
    const auto bytes = reshard::read_box(catalog, one.tensor, tile, reading);
    for (uint64_t i = 0; item != 0 && i < bytes.size() / item; ++i) {
      const auto value = value_at(one.tensor.dtype, bytes.data() + i * item);
      const Dims at = place_of(tile, i);
      if (value && proof->holds(at, *value)) continue;
      throw unfaithful_error(
          {catalog.path, one.tensor.name},
          "element {} is {}, which is not {}, and the target has no place for "
          "the buffer",
          to_string(at), value ? fmt::format("{}", *value) : "no number",
          proof->should)
          .with_hint("--drop '" + one.tensor.name + "' leaves it out");
    }
  }
}

}  // namespace

void prove_buffers(Catalog& catalog, double theta) {
  for (const Redundant& one : catalog.redundant)
    if (families::is_unproven(one)) prove(catalog, one, theta);
  std::erase_if(catalog.redundant, families::is_unproven);
}

}  // namespace ckpt::library
