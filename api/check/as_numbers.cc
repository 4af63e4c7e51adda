// SPDX-License-Identifier: Apache-2.0
#include "api/check/as_numbers.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/quantized/dequantize.h"

namespace ckpt::library {
namespace {

// Each weight's name, and how it is quantized. Empty if that can't be said.
ReadAsNumbers codes_of(const Catalog& catalog) {
  ReadAsNumbers codes;
  if (!families::may_be_quantized(catalog)) return codes;
  try {
    for (const families::LogicalWeight& weight :
         families::logical_weights(catalog)) {
      std::string how = weight.method;
      if (!weight.block.empty()) how += " (" + weight.block + ")";
      codes.emplace(weight.name, std::move(how));
    }
  } catch (const Error&) {
    codes.clear();  // compared as stored
  }
  return codes;
}

void read_numbers(Catalog& catalog, const ReadAsNumbers& codes,
                  const char* side, const Engine& engine, ReadAsNumbers& read) {
  if (codes.empty()) return;
  try {
    Catalog copy = catalog;
    locate(copy);
    families::dequantize(copy, DType::f32);
    catalog = std::move(copy);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful &&
        error.code() != ExitCode::kDamaged)
      throw;
    engine.warn(fmt::format("{}: codes are compared as they are stored: {}",
                            catalog.path, error.problem()));
    return;
  }
  for (const auto& [name, how] : codes) {
    std::string& text = read[name];
    text += fmt::format("{}{} has {}", text.empty() ? "" : ", ", side, how);
  }
}

}  // namespace

ReadAsNumbers as_numbers(Catalog& a, Catalog& b, const Engine& engine) {
  ReadAsNumbers read;
  const ReadAsNumbers of_a = codes_of(a), of_b = codes_of(b);
  const bool unlike = std::ranges::any_of(of_a, [&](const auto& weight) {
    const auto other = of_b.find(weight.first);
    return other != of_b.end() && other->second != weight.second;
  });
  if (of_a.empty() == of_b.empty() && !unlike) return read;
  read_numbers(a, of_a, "A", engine, read);
  read_numbers(b, of_b, "B", engine, read);
  return read;
}

void say_read(const ReadAsNumbers& read, Comparison& result) {
  for (Difference& difference : result.differences) {
    const auto found = read.find(difference.tensor);
    if (found == read.end() ||
        (difference.kind != "dtype" && difference.kind != "values"))
      continue;
    difference.kind = "dtype";
    difference.why = found->second + ", read as f32";
    difference.message = difference.why;
  }
}

}  // namespace ckpt::library
