// SPDX-License-Identifier: Apache-2.0
#include "api/write/decoded.h"

#include <algorithm>

#include "lib/decoding.h"
#include "lib/processors.h"
#include "reshard/sources/decode.h"

namespace ckpt::library {

std::set<std::string> digested_elsewhere(const Catalog& source) {
  std::set<std::string> names;
  for (const Tensor& tensor : source.tensors)
    for (const Piece& piece : tensor.pieces)
      if (const File& file = source.files.at(piece.extent.file);
          is_decoded(file) || is_foreign(file))
        names.insert(tensor.name);
  return names;
}

uint64_t bytes_to_read(const Catalog& source, uint64_t bytes) {
  std::set<uint32_t> files;
  for (const Tensor& tensor : source.tensors)
    for (const Piece& piece : tensor.pieces)
      if (is_decoded(source.files.at(piece.extent.file)))
        files.insert(piece.extent.file);
  for (const uint32_t number : files) {
    const File& file = source.files[number];
    const Decoding& from = decoding_of(file);
    uint64_t stored = 0;
    for (const Tensor* part : parts_of(from)) stored += byte_size(*part);
    bytes = bytes - std::min(bytes, file.size) + stored;
  }
  return bytes;
}

uint64_t leave_room(const Catalog& source, reshard::RunOptions& run) {
  const bool any = std::ranges::any_of(
      source.files, [](const File& file) { return is_decoded(file); });
  if (!any) return 0;
  constexpr uint64_t kEach = reshard::DecodeReader::kMemory;
  const uint64_t half = run.max_mem / 2;
  const uint64_t threads = run.threads ? run.threads : processors();
  const uint64_t fit = std::clamp<uint64_t>(half / kEach, 1, threads);
  // As many as there are stays unsaid: ranks of a machine share them.
  if (fit < threads) run.threads = static_cast<uint32_t>(fit);
  const uint64_t room = std::min(half, fit * kEach);
  run.max_mem -= room;
  return room;
}

}  // namespace ckpt::library
