// SPDX-License-Identifier: Apache-2.0
#include "api/check/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "ckpt/error.h"
#include "formats/traits.h"
#include "lib/hash/digest.h"
#include "reshard/numbers/cast.h"
#include "reshard/numbers/values.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

constexpr std::string_view kEqualAfterCast = "equal after cast";

using Bytes = std::vector<std::byte>;

Bytes cast_to(DType from, DType to, const Bytes& in, uint64_t count) {
  Bytes out(byte_size(to, Shape{count}).value_or(0));
  reshard::Caster()(from, to, in.data(), out.data(), count);
  return out;
}

// One of two tensors, with its catalog.
struct Whose {
  const Catalog& catalog;
  const Tensor& tensor;
};

// True if there are enough different elements: that a few ones round to ones
// proves nothing.
bool is_telling(const Whose& whose, const Engine& engine) {
  constexpr uint64_t kFew = 16, kLooked = 1 << 16;
  const uint64_t size = element_size(whose.tensor.dtype);
  const Box first = reshard::tiles(whose.tensor, kLooked).at(0);
  const Bytes bytes =
      reshard::read_box(whose.catalog, whose.tensor, first, plain_read(engine));
  std::set<std::string_view> seen;
  for (uint64_t at = 0; at + size <= bytes.size() && seen.size() < kFew;
       at += size)
    seen.emplace(reinterpret_cast<const char*>(bytes.data() + at), size);
  return seen.size() >= kFew;
}

// True if each element of `from`, cast to `dtype` and then to the dtype of
// `to`, equals that of `to`, bit for bit.
bool casts_to(const Whose& from, const Whose& to, DType dtype,
              const Engine& engine) {
  const reshard::RunOptions run = plain_read(engine);
  const uint64_t tile = std::min<uint64_t>(engine.max_mem / 16, 32 << 20);
  return std::ranges::all_of(
      reshard::tiles(from.tensor, tile), [&](const Box& box) {
        const uint64_t count = volume(box);
        Bytes made = cast_to(
            from.tensor.dtype, dtype,
            reshard::read_box(from.catalog, from.tensor, box, run), count);
        if (to.tensor.dtype != dtype)
          made = cast_to(dtype, to.tensor.dtype, made, count);
        return made == reshard::read_box(to.catalog, to.tensor, box, run);
      });
}

// The number of rows in the blocks that B has in another order than A:
// from[i] is the row of A that is row i of B.
uint64_t block_rows(const std::vector<uint64_t>& from) {
  const uint64_t rows = from.size();
  for (uint64_t size = rows / 2; size > 1; --size) {
    if (rows % size != 0) continue;
    bool whole = true;
    for (uint64_t i = 0; whole && i < rows; ++i)
      whole = i % size == 0 ? from[i] % size == 0 : from[i] == from[i - 1] + 1;
    if (whole) return size;
  }
  return 1;
}

// The row of A that each row of B equals; empty if a row has no match.
std::vector<uint64_t> matched_rows(const Bytes& a, const Bytes& b,
                                   uint64_t rows) {
  const uint64_t width = a.size() / rows;
  const auto row = [&](const Bytes& of, uint64_t i) {
    return std::span(of).subspan(i * width, width);
  };
  using Key = std::pair<uint64_t, uint64_t>;
  const auto key = [&](const Bytes& of, uint64_t i) {
    const Digest sum = digest(0, row(of, i));
    return Key(sum.d0, sum.d1);
  };
  std::map<Key, std::vector<uint64_t>> places;
  for (uint64_t i = rows; i-- > 0;) places[key(a, i)].push_back(i);
  std::vector<uint64_t> from;
  for (uint64_t i = 0; i < rows; ++i) {
    const auto found = places.find(key(b, i));
    if (found == places.end() || found->second.empty()) return {};
    const uint64_t at = found->second.back();
    found->second.pop_back();
    if (!std::ranges::equal(row(a, at), row(b, i))) return {};
    from.push_back(at);
  }
  return from;
}

}  // namespace

reshard::RunOptions plain_read(const Engine& engine) {
  reshard::RunOptions run;
  run.threads = engine.threads;
  run.max_mem = std::max<uint64_t>(engine.max_mem / 4, 1 << 20);
  run.digest = false;
  return run;
}

std::optional<std::string> rounding(const Catalog& a, const Tensor& x,
                                    const Catalog& b, const Tensor& y,
                                    const Engine& engine) {
  if (x.shape != y.shape || !reshard::has_values(x.dtype) ||
      !reshard::has_values(y.dtype))
    return std::nullopt;
  const Whose left{a, x}, right{b, y};
  try {
    if (x.dtype != y.dtype) {
      for (const auto& [from, to] :
           {std::pair(left, right), std::pair(right, left)})
        if (element_size(from.tensor.dtype) >= element_size(to.tensor.dtype) &&
            casts_to(from, to, to.tensor.dtype, engine))
          return fmt::format("{} to {}", kEqualAfterCast,
                             name(to.tensor.dtype));
      return std::nullopt;
    }
    if (x.dtype != DType::f32 || element_count(x.shape).value_or(0) == 0 ||
        !is_telling(left, engine) || !is_telling(right, engine))
      return std::nullopt;
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (casts_to(left, right, dtype, engine))
        return fmt::format("B is A rounded to {}", name(dtype));
      if (casts_to(right, left, dtype, engine))
        return fmt::format("A is B rounded to {}", name(dtype));
    }
  } catch (const Error& error) {
    // A cast may need a module that is not there.
    if (error.code() != ExitCode::kResource &&
        error.code() != ExitCode::kUnfaithful)
      throw;
  }
  return std::nullopt;
}

std::optional<std::string> row_order(const Catalog& a, const Tensor& x,
                                     const Catalog& b, const Tensor& y,
                                     const Engine& engine) {
  constexpr uint64_t kMostRows = 1 << 20;
  if (x.dtype != y.dtype || x.shape != y.shape || x.shape.empty() ||
      element_size(x.dtype) == 0)
    return std::nullopt;
  const uint64_t rows = x.shape[0], bytes = byte_size(x);
  if (rows < 2 || rows > kMostRows || bytes == 0 || bytes > engine.max_mem / 8)
    return std::nullopt;
  const reshard::RunOptions run = plain_read(engine);
  const Box whole = Box::whole(x.shape);
  const std::vector<uint64_t> from =
      matched_rows(reshard::read_box(a, x, whole, run),
                   reshard::read_box(b, y, whole, run), rows);
  if (from.empty()) return std::nullopt;
  const uint64_t size = block_rows(from);
  if (size == 1) return "rows permuted";
  return fmt::format("rows permuted by heads ({} blocks of {} rows)",
                     rows / size, size);
}

std::optional<std::string> only_padding(const Catalog& a, const Tensor& x,
                                        const Catalog& b, const Tensor& y,
                                        uint64_t vocabulary,
                                        const Engine& engine) {
  if (vocabulary == 0 || x.dtype != y.dtype || x.shape != y.shape ||
      x.shape.size() != 2 || x.shape[0] <= vocabulary ||
      element_size(x.dtype) == 0)
    return std::nullopt;
  const reshard::RunOptions run = plain_read(engine);
  Tensor head = x;
  head.shape[0] = vocabulary;
  const uint64_t tile = std::min<uint64_t>(engine.max_mem / 8, 64 << 20);
  const bool same =
      std::ranges::all_of(reshard::tiles(head, tile), [&](const Box& box) {
        return reshard::read_box(a, x, box, run) ==
               reshard::read_box(b, y, box, run);
      });
  if (!same) return std::nullopt;
  return fmt::format(
      "only padding differs (rows {} to {}; the vocabulary has {})", vocabulary,
      x.shape[0] - 1, vocabulary);
}

bool is_own_dtype(const Catalog& a, const Catalog& b, std::string_view said) {
  return said.find(kEqualAfterCast) != said.npos &&
         (formats::traits_of(a.format).own_dtypes ||
          formats::traits_of(b.format).own_dtypes);
}

}  // namespace ckpt::library
