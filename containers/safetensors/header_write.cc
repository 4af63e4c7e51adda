// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "containers/safetensors/header.h"

namespace ckpt::safetensors {
namespace {

// As serde_json does: escapes only what must be.
void append_string(std::string& json, std::string_view text) {
  constexpr std::string_view kSpecial = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  json += '"';
  for (const char c : text) {
    const size_t special = kSpecial.find(c);
    if (special != kSpecial.npos) {
      json += '\\';
      json += kLetters[special];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<uint8_t>(c));
    } else {
      json += c;
    }
  }
  json += '"';
}

}  // namespace

size_t dtype_rank(std::string_view dtype) {
  // Not by size alone: this is the reference's enum in reverse order.
  constexpr auto kOrder = std::to_array<std::string_view>(
      {"U64",         "I64",     "F64",     "C64",     "F32", "U32",
       "I32",         "BF16",    "F16",     "U16",     "I16", "F8_E5M2FNUZ",
       "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8",  "U8",
       "F6_E3M2",     "F6_E2M3", "F4",      "BOOL"});
  return static_cast<size_t>(std::ranges::find(kOrder, dtype) - kOrder.begin());
}

std::string encode_header(std::span<const Described> tensors,
                          const std::optional<Metadata>& metadata) {
  std::string json = "{";
  const auto comma = [&] {
    if (json.back() != '{') json += ',';
  };
  if (metadata) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : *metadata) {
      comma();
      append_string(json, key);
      json += ':';
      append_string(json, value);
    }
    json += '}';
  }
  uint64_t at = 0;
  for (const Described& tensor : tensors) {
    comma();
    append_string(json, tensor.name);
    json += fmt::format(
        R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
        tensor.dtype, fmt::join(tensor.shape, ","), at, at + tensor.bytes);
    at += tensor.bytes;
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');

  std::string header(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    header[i] = static_cast<char>(uint64_t{json.size()} >> (8 * i) & 0xff);
  return header + json;
}

}  // namespace ckpt::safetensors
