// SPDX-License-Identifier: Apache-2.0
#include "api/delta/index.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>

#include "api/delta/lossless.h"
#include "lib/codec/pack.h"
#include "lib/hash/digest.h"
#include "lib/io/remote.h"
#include "lib/text/json.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMostIndex = uint64_t{1} << 30;
constexpr uint64_t kMostDeltaFiles = 1'000'000;

Json dims_json(const Dims& dims) {
  Json list = Json::array();
  for (const uint64_t dim : dims) list.push_back(dim);
  return list;
}

Json block_json(const Block& block) {
  Json json{{"bytes", block.bytes}, {"payload", {block.begin, block.end}}};
  if (block.step != 1) json["step"] = block.step;
  if (!block.tensor) return json;
  json["tensor"] = *block.tensor;
  json["offset"] = dims_json(block.box.offset);
  json["shape"] = dims_json(block.box.shape);
  json["digest"] = block.digest.hex();
  return json;
}

const safetensors::Entry* entry_of(const safetensors::Header& header,
                                   std::string_view name) {
  const auto found =
      std::ranges::find(header.entries, name, &safetensors::Entry::name);
  return found == header.entries.end() ? nullptr : &*found;
}

}  // namespace

std::string index_text(const std::vector<PackedFile>& files, bool folder,
                       const std::vector<BaseTensor>& tensors) {
  Json root{{"format", safetensors::kLosslessFormat}, {"folder", folder}};
  root["tensors"] = Json::array();
  for (const BaseTensor& tensor : tensors)
    root["tensors"].push_back({{"name", tensor.name},
                               {"dtype", name(tensor.dtype)},
                               {"shape", dims_json(tensor.shape)}});
  root["files"] = Json::array();
  for (const PackedFile& file : files) {
    Json blocks = Json::array();
    for (const Block& block : file.blocks) blocks.push_back(block_json(block));
    root["files"].push_back({{"path", file.path},
                             {"bytes", file.bytes},
                             {"sha256", file.sha256},
                             {"blocks", std::move(blocks)}});
  }
  return root.dump();
}

std::string header_text(uint64_t payload, uint64_t index) {
  const auto entry = [](uint64_t begin, uint64_t end) {
    return Json{{"dtype", "U8"},
                {"shape", {end - begin}},
                {"data_offsets", {begin, end}}};
  };
  const Json root{{"__metadata__", {{"format", safetensors::kLosslessFormat}}},
                  {"payload", entry(0, payload)},
                  {"index", entry(payload, payload + index)}};
  std::string text = root.dump();
  text.resize(kHeaderBytes - 8, ' ');
  const uint64_t size = text.size();
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>(size >> 8 * i & 0xff);
  return length + text;
}

DeltaIndex::DeltaIndex(const std::string& path,
                       const safetensors::Header& header,
                       const io::Handle& file)
    : path_(path) {
  const auto* const index = entry_of(header, "index");
  const auto* const payload = entry_of(header, "payload");
  if (!index || !payload) throw wrong("it has no index");
  payload_ = payload->begin;
  payload_bytes_ = payload->end - payload->begin;
  // The size of the plain text stands before its frame.
  const uint64_t packed = index->end - index->begin;
  if (packed < 8 || packed > kMostIndex)
    throw wrong("an index of {} bytes", packed);
  std::vector<std::byte> bytes(packed);
  file.read(index->begin, bytes);
  uint64_t size = 0;
  for (size_t i = 8; i-- > 0;)
    size = size << 8 | static_cast<uint64_t>(bytes[i]);
  if (size > kMostIndex) throw wrong("an index of {} bytes", size);
  std::string text(size, '\0');
  codec::unpack_zstd(std::span(bytes).subspan(8),
                     std::as_writable_bytes(std::span(text)), {path, "index"});
  const Json root = text::parse_json(text, path);
  if (text::string_member(root, "format", path) != safetensors::kLosslessFormat)
    throw wrong("its index is of another format");
  folder_ = text::member(root, "folder", path) == Json(true);
  read_tensors(root);
  const Json& files = text::member(root, "files", path);
  if (!files.is_array() || files.size() > kMostDeltaFiles)
    throw wrong("its list of files");
  for (const Json& one : files) read_file(one);
  if (!folder_ && files_.size() != 1) throw wrong("{} files", files_.size());
}

Dims DeltaIndex::dims(const Json& json) const {
  if (!json.is_array()) throw wrong("a shape is no list");
  std::vector<uint64_t> list;
  for (const Json& one : json) {
    if (!one.is_number_unsigned()) throw wrong("a shape has {}", one.dump());
    list.push_back(one.get<uint64_t>());
  }
  return Dims(list);
}

void DeltaIndex::read_tensors(const Json& root) {
  const Json& tensors = text::member(root, "tensors", path_);
  if (!tensors.is_array()) throw wrong("its list of tensors");
  for (const Json& one : tensors) {
    const std::string word = text::string_member(one, "dtype", path_);
    const auto dtype = dtype_from_name(word);
    if (!dtype || element_size(*dtype) == 0) throw wrong("dtype '{}'", word);
    tensors_.push_back({text::string_member(one, "name", path_), *dtype,
                        Shape(dims(text::member(one, "shape", path_)))});
  }
}

// Nothing may be written outside of the target.
void DeltaIndex::check_path(const std::string& path) const {
  const fs::path given(path);
  const bool inside = !path.empty() && given.is_relative() &&
                      path.find('\0') == path.npos &&
                      std::ranges::none_of(given, [](const fs::path& part) {
                        return part == ".." || part == "." || part.empty();
                      });
  if (!inside)
    throw unsafe_error({path_, {}}, "a file '{}' outside of the target", path);
}

void DeltaIndex::read_file(const Json& json) {
  PackedFile file;
  file.path = text::string_member(json, "path", path_);
  check_path(file.path);
  file.bytes = text::uint_member(json, "bytes", path_);
  file.sha256 = text::string_member(json, "sha256", path_);
  const Json& blocks = text::member(json, "blocks", path_);
  if (!blocks.is_array()) throw wrong("{}: its blocks", file.path);
  uint64_t sum = 0;
  for (const Json& one : blocks) {
    file.blocks.push_back(read_block(one));
    sum += file.blocks.back().bytes;  // each of at most kBlockBytes
  }
  if (sum != file.bytes)
    throw wrong("{}: blocks of {} bytes, the file has {}", file.path, sum,
                file.bytes);
  files_.push_back(std::move(file));
}

Block DeltaIndex::read_block(const Json& json) const {
  Block block;
  block.bytes = text::uint_member(json, "bytes", path_);
  const Dims frame = dims(text::member(json, "payload", path_));
  if (frame.size() != 2 || frame[0] > frame[1] || frame[1] > payload_bytes_ ||
      frame[1] - frame[0] > 2 * kBlockBytes || block.bytes > kBlockBytes)
    throw wrong("a block of {} bytes at {}", block.bytes,
                to_string(Shape(frame)));
  block.begin = frame[0];
  block.end = frame[1];
  if (json.contains("step"))
    block.step = text::uint_member(json, "step", path_);
  if (block.step == 0 || block.bytes % block.step != 0)
    throw wrong("elements of {} bytes in a block of {}", block.step,
                block.bytes);
  if (!json.contains("tensor")) return block;
  const uint64_t tensor = text::uint_member(json, "tensor", path_);
  if (tensor >= tensors_.size()) throw wrong("tensor {}", tensor);
  block.tensor = static_cast<uint32_t>(tensor);
  block.box.offset = dims(text::member(json, "offset", path_));
  block.box.shape = dims(text::member(json, "shape", path_));
  const BaseTensor& base = tensors_[tensor];
  bool inside = block.box.offset.size() == base.shape.size() &&
                block.box.shape.size() == base.shape.size();
  for (size_t i = 0; inside && i < base.shape.size(); ++i) {
    const auto end = checked_add(block.box.offset[i], block.box.shape[i]);
    inside = end && *end <= base.shape[i];
  }
  if (!inside || byte_size(base.dtype, Shape(block.box.shape)) != block.bytes)
    throw wrong("a box {} of {} {}", to_string(Shape(block.box.shape)),
                base.name, to_string(base.shape));
  const auto said = Digest::parse(text::string_member(json, "digest", path_));
  if (!said) throw wrong("a digest");
  block.digest = *said;
  return block;
}

bool is_lossless(const std::string& path) {
  if (io::is_url(path) || !io::is_file(path)) return false;
  const io::Handle file = io::Handle::open_read(path);
  if (file.size() < kHeaderBytes) return false;
  const std::string head = file.read_string(8, kHeaderBytes - 8);
  return head.starts_with('{') &&
         head.find(safetensors::kLosslessFormat) != head.npos;
}

LosslessResult lossless_contents(const std::string& path) {
  const io::Handle in = io::Handle::open_read(path);
  const DeltaIndex index(path, safetensors::read_header(in), in);
  LosslessResult result{.files = index.files().size(),
                        .tensors = index.tensors().size(),
                        .packed = in.size()};
  for (const PackedFile& file : index.files()) {
    result.bytes += file.bytes;
    for (const Block& block : file.blocks)
      if (block.tensor) result.xored += block.bytes;
  }
  return result;
}

}  // namespace ckpt::library
