// SPDX-License-Identifier: Apache-2.0
// The item of a .distcp file: a small zip of one tensor, in which everything
// but the payload follows from dtype and shape.
#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "formats/dcp/frame.h"
#include "formats/dcp/metadata.h"
#include "formats/salvage/repair.h"
#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/zip/headers.h"

namespace ckpt::salvage {
std::optional<ItemRepair> repair_item(const std::string& path, uint64_t offset,
                                      uint64_t size, DType dtype,
                                      const Shape& shape) {
  dcp::Frames frames;
  const dcp::Frame& frame = frames.of(dtype, shape);
  if (frame.size != size || !frame.tail) return std::nullopt;
  const io::Handle file = io::Handle::open_read(path);
  if (offset > file.size() || size > file.size() - offset) return std::nullopt;
  ItemRepair item;
  item.payload = {offset + frame.data_offset,
                  offset + frame.data_offset + frame.payload};
  item.literals = {{offset, *frame.head},
                   {offset + size - frame.tail->size(), *frame.tail}};
  item.crc = {item.payload.begin, item.payload.end, {}};
  // Each surviving checksum is a witness, wherever the damage is.
  const uint32_t crc = crc_of(file, item.payload);
  for (const uint64_t at : frame.crcs) {
    item.crc.at.push_back(offset + at);
    const std::string stored = file.read_string(offset + at, 4);
    item.payload_is_right |= crc != 0 && zip::load<uint32_t>(stored, 0) == crc;
  }
  return item;
}

std::vector<std::string> data_files(const std::string& metadata) {
  const io::Handle file = io::Handle::open_read(metadata);
  const auto document = pickle::decode(file, 0, file.size()).document;
  std::set<std::string> names;
  for (pickle::Id id = 0; id < document->size(); ++id) {
    if (!document->is(id, pickle::Type::kString)) continue;
    const std::string_view text = document->text(id);
    if (text.ends_with(".distcp") && text.find('/') == text.npos)
      names.emplace(text);
  }
  return {names.begin(), names.end()};
}

std::map<std::string, uint64_t> data_sizes(const std::string& metadata) {
  const dcp::Metadata read = dcp::read_metadata(metadata, {});
  // Items are back to back; an offset far past all of them is wrong, and would
  // make a file that fills the disk.
  constexpr uint64_t kSlack = uint64_t{1} << 20;
  std::map<std::string, uint64_t> sizes, items;
  const auto add = [&](const dcp::Stored& stored) {
    if (stored.file == dcp::kNoFile) return;
    uint64_t& size = sizes[read.files[stored.file]];
    size = std::max(size, stored.offset + stored.length);
    items[read.files[stored.file]] += stored.length;
  };
  for (const dcp::TensorEntry& tensor : read.tensors)
    for (const dcp::Chunk& chunk : tensor.chunks) add(chunk.stored);
  for (const dcp::BytesEntry& bytes : read.bytes) add(bytes.stored);
  std::erase_if(sizes, [&](const auto& entry) {
    return entry.second > 2 * items[entry.first] + kSlack;
  });
  return sizes;
}

}  // namespace ckpt::salvage
