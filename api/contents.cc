// SPDX-License-Identifier: Apache-2.0
#include "api/contents.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/crc32.h"
#include "lib/io/file.h"
#include "lib/zip/archive.h"

namespace ckpt::library {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// Bytes from the first element of a piece to the end of its last.
uint64_t span_of(const Tensor& tensor, const Piece& piece) {
  const Shape count = {piece.flat ? piece.flat->end - piece.flat->begin
                                  : element_count(piece.box.shape).value_or(0)};
  if (piece.extent.strides.empty() || count[0] == 0 || piece.flat)
    return byte_size(tensor.dtype, count).value_or(0);
  uint64_t last = element_size(tensor.dtype);
  for (size_t d = 0; d < piece.box.shape.size(); ++d)
    last += (piece.box.shape[d] - 1) * piece.extent.strides[d];
  return last;
}

// For each file of the target, in order.
std::vector<Ranges> payload_of(const Catalog& catalog) {
  std::vector<Ranges> payload(catalog.files.size());
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      const uint64_t begin = piece.extent.offset;
      payload[piece.extent.file].emplace_back(begin,
                                              begin + span_of(tensor, piece));
    }
  for (Ranges& ranges : payload) std::ranges::sort(ranges);
  return payload;
}

// The ranges between, in a manifest's form.
std::vector<uint64_t> gaps(const Ranges& payload, uint64_t size) {
  std::vector<uint64_t> result;
  uint64_t at = 0;
  const auto add = [&](uint64_t end) {
    if (at < end) result.insert(result.end(), {at, end});
  };
  for (const auto& [begin, end] : payload) {
    add(begin);
    at = std::max(at, end);
  }
  add(size);
  return result;
}

// A .distcp file is one zip after another; the whole is not a zip.
bool is_zip(const io::Handle& file) {
  return !file.path().ends_with(".distcp") && file.size() >= 22 &&
         file.read_string(0, 4) == "PK\3\4";
}

}  // namespace

void add_contents(const Prepared& prepared, const std::string& root,
                  Manifest& manifest) {
  const Target& target = prepared.target;
  const std::vector<Ranges> payload = payload_of(target.catalog);
  for (size_t f = 0; f < target.files.size(); ++f) {
    const TargetFile& file = target.files[f];
    std::vector<uint64_t> ranges;
    if (f < payload.size() && !payload[f].empty()) {
      ranges = gaps(payload[f], file.size);
      if (ranges.empty()) continue;  // nothing but tensors
    }
    const io::Handle handle = io::Handle::open_read(io::join(root, file.path));
    manifest.contents[file.path] = {sha256_of(handle, ranges), ranges};
  }
  if (prepared.single_file)
    manifest.identity = identity_of(
        io::Handle::open_read(io::join(root, target.files.front().path)));
}

void check_stored_crcs(const io::Handle& file) {
  if (!is_zip(file)) return;
  std::vector<std::byte> block(1 << 20);
  const zip::Archive archive = zip::Archive::read(file);
  for (const zip::Entry& entry : archive.entries()) {
    if (entry.method != zip::kStored || entry.crc32 == 0) continue;
    uint32_t sum = 0;
    for (uint64_t done = 0; done < entry.size;) {
      const auto part = std::span(block).first(
          std::min<uint64_t>(entry.size - done, block.size()));
      file.read(entry.data_offset + done, part);
      sum = crc32(sum, part);
      done += part.size();
    }
    if (sum != entry.crc32)
      throw input_error({file.path(), {}},
                        "record {} has CRC-32 {:08x}, the archive says {:08x}",
                        entry.name, sum, entry.crc32)
          .with_hint("copy or download the file again");
  }
}

void add_carried_crcs(Catalog& catalog) {
  std::unordered_set<std::string> known;
  for (const File& file : catalog.files) known.insert(file.path);
  for (const SourceFile& listed : catalog.file_list) {
    const std::string path = io::join(catalog.file_root, listed.path);
    if (known.contains(path)) continue;
    try {
      if (!io::is_file(path)) continue;
      const io::Handle file = io::Handle::open_read(path);
      if (!is_zip(file)) continue;
      const auto id = static_cast<uint32_t>(catalog.files.size());
      const zip::Archive archive = zip::Archive::read(file);
      for (const zip::Entry& entry : archive.entries())
        if (entry.method == zip::kStored && entry.crc32 != 0)
          catalog.crcs.push_back({id, entry.data_offset,
                                  entry.data_offset + entry.size, entry.crc32,
                                  entry.name});
      catalog.files.push_back({.path = path, .size = file.size()});
    } catch (const Error& error) {
      catalog.problems.push_back(
          damage("damaged", {path, {}}, "{}", error.problem()));
    }
  }
}

}  // namespace ckpt::library
