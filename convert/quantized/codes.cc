// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/codes.h"

#include <algorithm>

#include "ckpt/error.h"
#include "convert/quantized/config.h"
#include "convert/quantized/dequantize.h"
#include "convert/quantized/quantized.h"
#include "lib/text/number.h"

namespace ckpt::families {

std::string_view parent_module(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

namespace {

// What a quantizer calls the floats that make numbers of its codes.
bool is_of_codes(std::string_view name) {
  constexpr std::string_view kWords[] = {"scal", "absmax", "codebook",
                                         "zero", "SCB",    "SU"};
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::ranges::any_of(kWords, [&](std::string_view word) {
    return last.find(word) != last.npos;
  });
}

}  // namespace

Codes::Codes(const Catalog& source) {
  quantized_ = !said_quantization(source).is_null();
  const bool located =
      std::ranges::none_of(source.tensors, [](const Tensor& tensor) {
        return tensor.pieces.empty() || tensor.pieces[0].extent.archive;
      });
  try {
    for (const LogicalWeight& weight : logical_weights(source, located)) {
      weights_.emplace(weight.name, weight.shape);
      parts_.insert(weight.parts.begin(), weight.parts.end());
    }
  } catch (const Error& error) {
    if (quantized_ && error.code() == ExitCode::kDamaged)
      broken_ = error;
    else if (quantized_)
      open_ = error.problem();
  }
  // Whole numbers in a weight's place may be a mistake: a bias or a norm beside
  // them scales nothing. A qweight with its scales is none.
  const auto is_code = [](const QuantizedWeight& weight) {
    return !weight.name.ends_with(".weight") &&
           std::ranges::any_of(weight.scales, is_of_codes);
  };
  quantized_ = quantized_ || !weights_.empty() ||
               std::ranges::any_of(quantized_weights(source), is_code);
}

bool Codes::has_like(std::string_view name) const {
  const auto numberless = [](std::string_view text) {
    std::string out(text);
    std::erase_if(out, text::is_digit);
    return out;
  };
  const std::string wanted = numberless(name);
  return std::ranges::any_of(weights_, [&](const auto& weight) {
    return numberless(weight.first) == wanted;
  });
}

bool Codes::belongs(std::string_view name) const {
  for (std::string_view at = parent_module(name); !at.empty();
       at = parent_module(at))
    if (weights_.contains(std::string(at) + ".weight") ||
        weights_.contains(std::string(at)))
      return true;
  return weights_.empty();
}

}  // namespace ckpt::families
