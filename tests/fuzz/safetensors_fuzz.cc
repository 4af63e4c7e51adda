// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .safetensors file: read or refused with an Error, never a
// crash. What is read is inside the file and is written back the same.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "containers/safetensors/header.h"

namespace {

using ckpt::safetensors::Described;
using ckpt::safetensors::Header;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Header& header, uint64_t size) {
  uint64_t at = header.data_begin;
  std::vector<Described> tensors;
  for (const auto& entry : header.entries) {
    require(entry.begin == at && entry.end <= size);
    require(ckpt::byte_size(entry.dtype, entry.shape) == entry.end - at);
    at = entry.end;
    tensors.push_back({.name = entry.name,
                       .dtype = ckpt::info(entry.dtype).safetensors,
                       .shape = entry.shape,
                       .bytes = entry.end - entry.begin});
  }
  require(at == size);

  const std::string written =
      ckpt::safetensors::encode_header(tensors, header.metadata);
  const Header again = ckpt::safetensors::parse_header(
      std::string_view(written).substr(8),
      written.size() + size - header.data_begin, "again");
  require(again.entries.size() == header.entries.size());
  for (size_t i = 0; i < again.entries.size(); ++i) {
    require(again.entries[i].name == header.entries[i].name);
    require(again.entries[i].shape == header.entries[i].shape);
  }
  require(again.metadata == header.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ckpt::safetensors::looks_like_header(bytes, size);
  // The first byte says how many bytes follow the header, so that the fuzzer
  // need not guess a 64-bit length.
  if (bytes.empty()) return 0;
  const std::string_view json = bytes.substr(1);
  const uint64_t file_size = 8 + json.size() + data[0];
  const auto accepts = [&](auto parts) {
    try {
      check(ckpt::safetensors::parse_header(std::move(parts), json.size(),
                                            file_size, "fuzz"),
            file_size);
      return true;
    } catch (const ckpt::Error&) {
      return false;
    }
  };
  const auto read = [json](uint64_t at, std::span<char> to) {
    json.copy(to.data(), to.size(), at);
  };
  const size_t part = 1 + data[0] % 64;
  require(accepts(ckpt::text::Parts(json)) ==
          accepts(ckpt::text::Parts(json.size(), read, part)));
  return 0;
}
