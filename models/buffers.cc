// SPDX-License-Identifier: Apache-2.0
#include "models/buffers.h"

#include <fmt/format.h>

#include <cmath>

#include "lib/rounded.h"
#include "models/numbers.h"

namespace ckpt::families {
namespace {

enum class Buffer : uint8_t { kFrequencies, kMask, kMasked };

struct Row {
  std::string_view ending;
  Buffer buffer;
};
constexpr Row kBuffers[] = {
    {".rotary_emb.inv_freq", Buffer::kFrequencies},
    {"rope.freqs", Buffer::kFrequencies},
    {".attn.bias", Buffer::kMask},
    {".attention.bias", Buffer::kMask},
    {".attn.masked_bias", Buffer::kMasked},
    {".attention.masked_bias", Buffer::kMasked},
};

const Row* row_of(std::string_view name) {
  for (const Row& row : kBuffers)
    if (name.ends_with(row.ending)) return &row;
  return nullptr;
}

// How far a number of that dtype may be from its exact value: a few units in
// the last place, since powers are computed in many ways.
std::optional<double> precision(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
      return 1e-5;
    case DType::f16:
      return 2e-3;
    case DType::bf16:
      return 1e-2;
    default:
      return std::nullopt;
  }
}

std::optional<BufferProof> frequencies(const Tensor& tensor, double theta) {
  const auto relative = precision(tensor.dtype);
  if (tensor.shape.size() != 1 || tensor.shape[0] == 0 || !relative)
    return std::nullopt;
  const auto pairs = static_cast<double>(tensor.shape[0]);
  // The smallest that half precision holds without losing bits.
  const double absolute = tensor.dtype == DType::f16 ? 1e-7 : 0;
  BufferProof proof;
  proof.should = fmt::format("a rotary frequency of base {}", theta);
  proof.holds = [=, near = *relative](const Dims& at, double value) {
    const double wanted = std::pow(theta, -static_cast<double>(at[0]) / pairs);
    return std::abs(value - wanted) <= near * wanted + absolute;
  };
  return proof;
}

// Ones on and below the diagonal of the last two dimensions.
std::optional<BufferProof> mask(const Tensor& tensor) {
  const Shape& shape = tensor.shape;
  if (shape.size() != 4 || shape[0] != 1 || shape[1] != 1 ||
      shape[2] != shape[3])
    return std::nullopt;
  BufferProof proof;
  proof.should = "an element of a causal mask";
  proof.holds = [](const Dims& at, double value) {
    return value == (at[3] <= at[2] ? 1 : 0);
  };
  return proof;
}

// The value of masked scores: one number, far below any score.
std::optional<BufferProof> masked(const Tensor& tensor) {
  if (element_count(tensor.shape) != 1) return std::nullopt;
  constexpr double kFar = -1000;
  BufferProof proof;
  proof.should = "the value of masked scores";
  proof.holds = [](const Dims&, double value) { return value <= kFar; };
  return proof;
}

}  // namespace

bool is_buffer_name(std::string_view name) { return row_of(name) != nullptr; }

std::optional<BufferProof> buffer_proof(const Tensor& tensor, double theta) {
  const Row* row = row_of(tensor.name);
  if (!row) return std::nullopt;
  switch (row->buffer) {
    case Buffer::kFrequencies:
      return frequencies(tensor, theta);
    case Buffer::kMask:
      return mask(tensor);
    case Buffer::kMasked:
      return masked(tensor);
  }
  return std::nullopt;
}

bool is_unproven(const Redundant& redundant) {
  return !redundant.value && !redundant.same_as &&
         !is_rounded_weight(redundant);
}

}  // namespace ckpt::families
