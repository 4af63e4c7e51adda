// SPDX-License-Identifier: Apache-2.0
// Proves that constants and second copies that are left out are what they are
// said to be.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/rounded.h"
#include "lib/unruled.h"
#include "reshard/numbers/numbers.h"
#include "reshard/prove/prove.h"
#include "reshard/run/read.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kMostTile = uint64_t{16} << 20;

// One element as a number to print; nothing for dtypes that are not numbers.
std::optional<double> value_of(DType dtype, std::span<const std::byte> bytes) {
  const auto load = [&](auto value) {
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::f64:
      return load(double{});
    case DType::f32:
      return load(float{});
    case DType::f16:
      return std::bit_cast<float>(numbers::f16_to_float(load(uint16_t{})));
    case DType::bf16:
      return std::bit_cast<float>(numbers::bf16_to_float(load(uint16_t{})));
    default:
      return std::nullopt;
  }
}

std::string element_at(const Box& tile, uint64_t index) {
  Dims at = tile.offset;
  for (size_t d = at.size(); d-- > 0;) {
    at[d] += index % tile.shape[d];
    index /= tile.shape[d];
  }
  return to_string(at);
}

std::string hint_of(const Redundant& one) {
  // A reason that names an option is its own hint.
  if (one.why.find(" --") != one.why.npos) return {};
  return "--drop '" + one.tensor.name + "' leaves it out all the same";
}

void prove_value(const Catalog& catalog, const Redundant& one, const Box& tile,
                 std::span<const std::byte> bytes) {
  const uint64_t item = element_size(one.tensor.dtype);
  const size_t count = bytes.size() / item;
  for (size_t i = 0; i < count; ++i) {
    const auto element = bytes.subspan(i * item, item);
    // Usually every element equals the one before.
    if (i != 0 && std::memcmp(element.data(), element.data() - item, item) == 0)
      continue;
    const auto value = value_of(one.tensor.dtype, element);
    if (value == one.value) continue;
    throw unfaithful_error(
        {catalog.path, one.tensor.name},
        "element {} is {}, and has no place in the target, where it is {} ({})",
        element_at(tile, i), value ? fmt::format("{}", *value) : "no number",
        *one.value, one.why)
        .with_hint(hint_of(one));
  }
}

// The first that nobody can join stands for all.
[[noreturn]] void refuse_unruled(const Catalog& catalog, const Redundant& one,
                                 std::string_view why) {
  std::unordered_set<std::string_view> names;
  for (const Redundant& other : catalog.redundant)
    if (is_unruled(other)) names.insert(other.tensor.name);
  const auto file = [&](const Tensor& tensor) {
    return catalog.files[tensor.pieces.at(0).extent.file].path;
  };
  throw unfaithful_error(
      {catalog.path, one.tensor.name}, "{}: {} ({} and {}){}", one.why, why,
      file(*one.same_as), file(one.tensor),
      names.size() > 1 ? fmt::format("; {} tensors have no rule", names.size())
                       : "")
      .with_hint(unruled_hint(one.tensor.name));
}

void prove_same(const Catalog& catalog, const Redundant& one, const Box& tile,
                std::span<const std::byte> bytes,
                std::span<const std::byte> other) {
  if (bytes.size() == other.size() &&
      std::memcmp(bytes.data(), other.data(), bytes.size()) == 0)
    return;
  if (is_unruled(one)) refuse_unruled(catalog, one, "what they hold differs");
  const auto unlike = std::ranges::mismatch(bytes, other);
  const auto byte = static_cast<uint64_t>(unlike.in1 - bytes.begin());
  throw unfaithful_error(
      {catalog.path, one.tensor.name},
      "differs from {} at element {}, and the target has one of them only ({})",
      one.same_as->name,
      element_at(tile, byte / element_size(one.tensor.dtype)), one.why)
      .with_hint(fmt::format(
          fmt::runtime(one.why.starts_with("--tie")
                           ? "they are two tensors: leave out --tie; "
                             "--exclude '{}' gives this one up"
                           : "if they are two tensors: --set tie=false; to "
                             "take the other: --drop '{}'"),
          one.tensor.name));
}

// True if a copy with fewer bits is the other one rounded to its dtype.
bool is_rounding(const Redundant& one) {
  return one.same_as && one.same_as->dtype == DType::f32 &&
         (one.tensor.dtype == DType::bf16 || one.tensor.dtype == DType::f16);
}

void prove_rounded(const Catalog& catalog, const Redundant& one,
                   const Box& tile, std::span<const std::byte> bytes,
                   std::span<const std::byte> exact) {
  const auto unlike = first_unlike(exact, bytes, one.tensor.dtype);
  if (!unlike) return;
  const uint64_t item = element_size(one.tensor.dtype);
  const auto wide = exact.subspan(*unlike * sizeof(float), sizeof(float));
  throw unfaithful_error(
      {catalog.path, one.tensor.name},
      "element {} is {}, and {} of {} does not round to it ({})",
      element_at(tile, *unlike),
      value_of(one.tensor.dtype, bytes.subspan(*unlike * item, item)).value(),
      value_of(DType::f32, wide).value(), one.same_as->name, one.why)
      .with_hint("--model-only converts the weights in use alone");
}

}  // namespace

uint64_t redundant_bytes(const Catalog& catalog) {
  uint64_t bytes = 0;
  for (const Redundant& one : catalog.redundant)
    if (!is_rounded_weight(one))
      bytes += byte_size(one.tensor) * (one.same_as ? 2 : 1);
  return bytes;
}

void prove_redundant(const Catalog& catalog, const RunOptions& options) {
  if (catalog.redundant.empty()) return;
  RunOptions reading;
  reading.threads = 1;
  reading.max_mem = options.max_mem / 2;
  reading.digest = false;
  options.progress.begin("proving", redundant_bytes(catalog));
  for (const Redundant& one : catalog.redundant) {
    if (is_rounded_weight(one)) continue;  // proven as main weights are
    const bool rounds = is_rounding(one);
    if (one.same_as && ((one.same_as->dtype != one.tensor.dtype && !rounds) ||
                        one.same_as->shape != one.tensor.shape))
      throw unfaithful_error(
          {catalog.path, one.tensor.name}, "is {} {}, {} is {} {} ({})",
          name(one.tensor.dtype), to_string(one.tensor.shape),
          one.same_as->name, name(one.same_as->dtype),
          to_string(one.same_as->shape), one.why);
    bool zeros = is_unruled(one) && byte_size(one.tensor) != 0;
    for (const Box& tile :
         tiles(one.tensor, std::min(kMostTile, options.max_mem / 8))) {
      if (interrupted()) throw Interrupted("stopped; nothing was written");
      const auto bytes = read_box(catalog, one.tensor, tile, reading);
      zeros = zeros && std::ranges::all_of(
                           bytes, [](std::byte b) { return b == std::byte{}; });
      if (one.value) prove_value(catalog, one, tile, bytes);
      if (one.same_as) {
        const auto other = read_box(catalog, *one.same_as, tile, reading);
        if (rounds)
          prove_rounded(catalog, one, tile, bytes, other);
        else
          prove_same(catalog, one, tile, bytes, other);
      }
      options.progress.advance(bytes.size() * (one.same_as ? 2 : 1));
    }
    if (zeros)
      refuse_unruled(catalog, one,
                     "each has zeros, which are copies or slices alike");
  }
  options.progress.end();
}

void prove_shared(const Catalog& catalog, const Tensor& tensor) {
  Catalog one;
  for (const Redundant& copy : catalog.redundant)
    if (copy.tensor.name == tensor.name && is_unruled(copy))
      one.redundant.push_back(copy);
  if (one.redundant.empty()) return;
  one.path = catalog.path;
  one.files = catalog.files;
  prove_redundant(one, {});
}

}  // namespace ckpt::reshard
