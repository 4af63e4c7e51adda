// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: read or refused with an Error, never a crash. What
// is read is inside the file, and is written back the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "containers/gguf/header.h"
#include "lib/io/file.h"

namespace {

using ckpt::gguf::Described;
using ckpt::gguf::Header;

void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Header& header, uint64_t size) {
  std::vector<Described> tensors;
  for (const auto& entry : header.entries) {
    require(entry.begin + entry.bytes <= size);
    tensors.push_back({.name = entry.name,
                       .shape = entry.shape,
                       .type = entry.type->type,
                       .bytes = entry.bytes});
  }
  // Nested arrays are read and not written.
  for (const auto& key : header.keys)
    if (key.type == "arr:arr") return;
  auto written =
      ckpt::gguf::encode_header(*header.document, header.keys, tensors);
  if (written.size > (uint64_t{1} << 24)) return;
  std::string file = std::move(written.head);
  file.resize(written.size);
  const Header again = ckpt::gguf::read_header(
      ckpt::io::Handle::of_memory(std::move(file), "again"));
  require(again.keys.size() == header.keys.size());
  require(again.entries.size() == header.entries.size());
  for (size_t i = 0; i < again.entries.size(); ++i) {
    require(again.entries[i].name == header.entries[i].name);
    require(again.entries[i].shape == header.entries[i].shape);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    check(ckpt::gguf::read_header(
              ckpt::io::Handle::of_memory(std::move(bytes), "fuzz")),
          size);
  } catch (const ckpt::Error&) {
  }
  return 0;
}
