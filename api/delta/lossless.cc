// SPDX-License-Identifier: Apache-2.0
#include "api/delta/lossless.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "containers/sums/sums.h"
#include "lib/codec/pack.h"
#include "lib/decoding.h"
#include "lib/hash/digest.h"
#include "lib/hash/sha256.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/staging.h"
#include "lib/parallel.h"
#include "lib/processors.h"
#include "lib/session.h"
#include "lib/text/json.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kBlockBytes = 4 << 20;
// A block, what it is XORed with, its planes and its frame.
constexpr uint64_t kBlockMemory = 5 * kBlockBytes;
constexpr uint64_t kHeaderBytes = 512;  // of the delta, padded with spaces
constexpr uint64_t kMostIndex = uint64_t{1} << 30;
constexpr uint64_t kMostDeltaFiles = 1'000'000;

// A part of a file of B; with `tensor`, XORed with a box of the base's.
struct Block {
  uint64_t bytes = 0;
  uint64_t begin = 0, end = 0;  // of its frame in the payload
  uint64_t step = 1;
  std::optional<uint32_t> tensor = {};
  Box box = {};
  Digest digest = {};  // of the box
};

struct PackedFile {
  std::string path;  // relative
  uint64_t bytes = 0;
  std::string sha256;
  std::vector<Block> blocks;
};

// The tensors that blocks name, by their number.
struct BaseTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

// How many blocks are worked on at once.
size_t blocks_at_once(const LosslessOptions& options) {
  const uint64_t threads =
      options.threads != 0 ? options.threads : processors();
  return std::clamp<uint64_t>(options.max_mem / (2 * kBlockMemory), 1, threads);
}

reshard::RunOptions one_thread() {
  reshard::RunOptions run;
  run.threads = 1;
  run.max_mem = kBlockBytes;
  run.digest = false;
  return run;
}

void xor_with(std::span<std::byte> bytes, std::span<const std::byte> other) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] ^= other[i];
}

void stop_if_interrupted() {
  if (interrupted()) throw Interrupted("stopped; nothing was written");
}

// --- what the files of B are made of ---

// Where elements of a tensor of B are in one of its files, all in a row.
struct Stretch {
  uint64_t offset = 0, bytes = 0;
  const Tensor* of = nullptr;
  const Piece* piece = nullptr;
};

bool is_plain(const File& file) {
  return file.codec == Codec::kRaw && !is_decoded(file);
}

// Nothing where the stored bytes are not the elements in their order.
std::optional<Stretch> stretch_of(const Catalog& b, const Tensor& tensor,
                                  const Piece& piece) {
  const uint64_t size = element_size(tensor.dtype);
  if (size == 0 || !tensor.grid.empty() || piece.flat ||
      piece.transform != kNoTransform || !piece.extent.strides.empty() ||
      piece.extent.archive != 0 || !is_plain(b.files[piece.extent.file]))
    return std::nullopt;
  return Stretch{piece.extent.offset, volume(piece.box) * size, &tensor,
                 &piece};
}

class DeltaPacker {
 public:
  DeltaPacker(const Catalog& base, const Catalog& b) : base_(base), b_(b) {
    for (const Tensor& tensor : base.tensors) named_[tensor.name] = &tensor;
    for (const Tensor& tensor : b.tensors)
      for (const Piece& piece : tensor.pieces)
        if (const auto stretch = stretch_of(b, tensor, piece))
          if (stretch->bytes != 0)
            stretches_[place_of(b.files[piece.extent.file].path)].push_back(
                *stretch);
  }

  std::vector<Block> blocks_of(const std::string& path, uint64_t bytes);
  const std::vector<BaseTensor>& tensors() const { return tensors_; }

  // The frame of a block of this file, at this byte.
  Bytes pack(const io::Handle& file, uint64_t at, Block& block,
             Bytes& plain) const {
    plain.resize(block.bytes);
    file.read(at, plain);
    Bytes bytes = plain;
    if (block.tensor) {
      const Tensor& tensor = *named_.at(tensors_[*block.tensor].name);
      const Bytes other =
          reshard::read_box(base_, tensor, block.box, one_thread());
      block.digest = digest(0, other);
      xor_with(bytes, other);
    }
    if (block.step == 1) return codec::pack_zstd(bytes);
    Bytes planes(bytes.size());
    codec::split_planes(bytes, block.step, planes);
    return codec::pack_zstd(planes);
  }

 private:
  static std::string place_of(const std::string& path) {
    std::error_code failed;
    const fs::path real = fs::canonical(path, failed);
    return failed ? path : real.string();
  }
  static void add_plain(uint64_t bytes, std::vector<Block>& blocks) {
    for (; bytes > 0; bytes -= blocks.back().bytes)
      blocks.push_back({.bytes = std::min(bytes, kBlockBytes)});
  }
  void add(const Stretch& stretch, std::vector<Block>& blocks);
  std::optional<uint32_t> number_of(const Tensor& tensor);

  const Catalog& base_;
  const Catalog& b_;
  std::unordered_map<std::string_view, const Tensor*> named_;
  std::unordered_map<std::string, std::vector<Stretch>> stretches_;
  std::unordered_map<std::string_view, uint32_t> numbers_;
  std::vector<BaseTensor> tensors_;
};

// The base's tensor of the same name, dtype and shape.
std::optional<uint32_t> DeltaPacker::number_of(const Tensor& tensor) {
  const auto found = named_.find(tensor.name);
  if (found == named_.end() || found->second->dtype != tensor.dtype ||
      found->second->shape != tensor.shape)
    return std::nullopt;
  const auto [at, fresh] =
      numbers_.try_emplace(tensor.name, static_cast<uint32_t>(tensors_.size()));
  if (fresh) tensors_.push_back({tensor.name, tensor.dtype, tensor.shape});
  return at->second;
}

void DeltaPacker::add(const Stretch& stretch, std::vector<Block>& blocks) {
  const uint64_t step = element_size(stretch.of->dtype);
  const auto tensor = number_of(*stretch.of);
  Tensor part = *stretch.of;
  part.shape = Shape(stretch.piece->box.shape);
  for (Box box : reshard::tiles(part, kBlockBytes)) {
    for (size_t dim = 0; dim < box.offset.size(); ++dim)
      box.offset[dim] += stretch.piece->box.offset[dim];
    Block block{.bytes = volume(box) * step, .step = step, .tensor = tensor};
    if (tensor) block.box = std::move(box);
    blocks.push_back(std::move(block));
  }
}

std::vector<Block> DeltaPacker::blocks_of(const std::string& path,
                                          uint64_t bytes) {
  std::vector<Stretch> stretches = std::move(stretches_[place_of(path)]);
  std::ranges::sort(stretches, {}, &Stretch::offset);
  std::vector<Block> blocks;
  uint64_t at = 0;
  for (const Stretch& stretch : stretches) {
    // Tensors that share their elements are taken once.
    if (stretch.offset < at || stretch.bytes > bytes ||
        stretch.offset > bytes - stretch.bytes)
      continue;
    add_plain(stretch.offset - at, blocks);
    add(stretch, blocks);
    at = stretch.offset + stretch.bytes;
  }
  add_plain(bytes - at, blocks);
  return blocks;
}

// The files below a directory, with paths relative to `root`.
void list_below(const std::string& root, const std::string& relative,
                std::vector<std::string>& files, int depth = 0) {
  constexpr int kDeepest = 32;
  if (depth > kDeepest)
    throw unsafe_error({root, {}}, "directories nest deeper than {}", kDeepest);
  for (const std::string& name : io::list_directory(io::join(root, relative))) {
    const std::string path = relative.empty() ? name : io::join(relative, name);
    if (io::is_directory(io::join(root, path)))
      list_below(root, path, files, depth + 1);
    else if (io::is_file(io::join(root, path)))
      files.push_back(path);
  }
}

// --- the index ---

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

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
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

// Reads an index that anyone may have made.
class Index {
 public:
  Index(const std::string& path, const safetensors::Header& header,
        const io::Handle& file);

  bool folder() const { return folder_; }
  const std::vector<PackedFile>& files() const { return files_; }
  const std::vector<BaseTensor>& tensors() const { return tensors_; }
  // Where the payload begins in the file.
  uint64_t payload() const { return payload_; }

 private:
  template <class... Args>
  Error wrong(fmt::format_string<Args...> text, Args&&... args) const {
    return input_error({path_, {}}, "not a whole delta: {}",
                       fmt::format(text, std::forward<Args>(args)...));
  }
  Dims dims(const Json& json) const;
  void read_tensors(const Json& root);
  void read_file(const Json& json);
  Block read_block(const Json& json) const;
  void check_path(const std::string& path) const;

  std::string path_;
  bool folder_ = true;
  uint64_t payload_ = 0, payload_bytes_ = 0;
  std::vector<PackedFile> files_;
  std::vector<BaseTensor> tensors_;
};

const safetensors::Entry* entry_of(const safetensors::Header& header,
                                   std::string_view name) {
  const auto found =
      std::ranges::find(header.entries, name, &safetensors::Entry::name);
  return found == header.entries.end() ? nullptr : &*found;
}

Index::Index(const std::string& path, const safetensors::Header& header,
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
  Bytes bytes(packed);
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

Dims Index::dims(const Json& json) const {
  if (!json.is_array()) throw wrong("a shape is no list");
  std::vector<uint64_t> list;
  for (const Json& one : json) {
    if (!one.is_number_unsigned()) throw wrong("a shape has {}", one.dump());
    list.push_back(one.get<uint64_t>());
  }
  return Dims(list);
}

void Index::read_tensors(const Json& root) {
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
void Index::check_path(const std::string& path) const {
  const fs::path given(path);
  const bool inside = !path.empty() && given.is_relative() &&
                      path.find('\0') == path.npos &&
                      std::ranges::none_of(given, [](const fs::path& part) {
                        return part == ".." || part == "." || part.empty();
                      });
  if (!inside)
    throw unsafe_error({path_, {}}, "a file '{}' outside of the target", path);
}

void Index::read_file(const Json& json) {
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

Block Index::read_block(const Json& json) const {
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

// The most that a delta of these files takes, without reading them.
uint64_t most_of(DeltaPacker& packer, const std::string& root, bool folder,
                 std::vector<PackedFile>& files, uint64_t& xored) {
  uint64_t end = 0;
  for (PackedFile& file : files) {
    file.blocks = packer.blocks_of(io::join(root, file.path), file.bytes);
    file.sha256 = std::string(64, '0');
    for (Block& block : file.blocks) {
      if (block.tensor) xored += block.bytes;
      block.begin = end;
      block.end = end += codec::most_packed(block.bytes);
    }
  }
  const std::string text = index_text(files, folder, packer.tensors());
  return kHeaderBytes + end + 8 + codec::most_packed(text.size());
}

// Calls make(i) for some blocks at once, then take(i) for each in order.
template <class Make, class Take>
void in_batches(size_t count, size_t at_once, Make make, Take take) {
  for (size_t first = 0; first < count; first += at_once) {
    stop_if_interrupted();
    const size_t some = std::min(at_once, count - first);
    parallel_for(some, [&](size_t i) { make(first + i, i); });
    for (size_t i = 0; i < some; ++i) take(first + i, i);
  }
}

}  // namespace

LosslessResult write_lossless(Catalog base, Catalog b,
                              const std::string& target,
                              const LosslessOptions& options,
                              const Progress& progress) {
  if (io::is_url(b.path))
    throw usage_error({b.path, {}}, "--lossless reads files on this machine")
        .with_hint("ckpt fetch URL DIR first");
  locate(base);
  locate(b);
  const heap::Unbounded blocks;  // a part of --max-mem: blocks_at_once
  const bool folder = io::is_directory(b.path);
  std::vector<std::string> names;
  if (folder)
    list_below(b.path, "", names);
  else
    names.push_back(io::base_name(b.path));
  const std::string root = folder ? b.path : io::parent(b.path);

  DeltaPacker packer(base, b);
  LosslessResult result;
  std::vector<PackedFile> files;
  for (const std::string& path : names) {
    const uint64_t bytes = io::file_size(io::join(root, path)).value_or(0);
    files.push_back({path, bytes, {}, {}});
    result.bytes += bytes;
  }
  result.files = files.size();
  const io::StagingOptions place{.single_file = true,
                                 .overwrite = options.overwrite,
                                 .sync = options.sync};
  if (options.dry_run) {
    io::Staging::check(target, place);
    result.packed = most_of(packer, root, folder, files, result.xored);
    result.tensors = packer.tensors().size();
    result.written = {{target, result.packed}};
    return result;
  }
  const InterruptScope scope;
  io::Staging staging(target, place);
  const std::string name = io::base_name(target);
  staging.create(name, 0);
  const io::Handle out = io::Handle::open_write(io::join(staging.root(), name));
  progress.begin("packing", result.bytes);
  const size_t at_once = blocks_at_once(options);
  std::vector<Bytes> plain(at_once), frames(at_once);
  uint64_t end = 0;
  for (PackedFile& file : files) {
    const std::string path = io::join(root, file.path);
    progress.file(path);
    const io::Handle in = io::Handle::open_read(path);
    file.blocks = packer.blocks_of(path, file.bytes);
    std::vector<uint64_t> starts;
    uint64_t at = 0;
    for (const Block& block : file.blocks) {
      starts.push_back(at);
      at += block.bytes;
      if (block.tensor) result.xored += block.bytes;
    }
    Sha256 sum;
    in_batches(
        file.blocks.size(), at_once,
        [&](size_t i, size_t slot) {
          frames[slot] =
              packer.pack(in, starts[i], file.blocks[i], plain[slot]);
        },
        [&](size_t i, size_t slot) {
          Block& block = file.blocks[i];
          sum.update(plain[slot]);
          out.write(kHeaderBytes + end,
                    std::span<const std::byte>(frames[slot]));
          block.begin = end;
          block.end = end += frames[slot].size();
          progress.advance(block.bytes);
        });
    file.sha256 = sum.hex();
  }
  result.tensors = packer.tensors().size();
  const std::string text = index_text(files, folder, packer.tensors());
  std::string packed(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    packed[i] = static_cast<char>(text.size() >> 8 * i & 0xff);
  const Bytes frame = codec::pack_zstd(bytes_of(text));
  packed.append(reinterpret_cast<const char*>(frame.data()), frame.size());
  out.write(kHeaderBytes + end, std::string_view(packed));
  out.write(0, std::string_view(header_text(end, packed.size())));
  result.packed = kHeaderBytes + end + packed.size();
  result.written = {{target, result.packed}};
  progress.end();
  staging.flush();
  Session::current()->watch.check_unchanged();
  staging.publish();
  return result;
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
  const Index index(path, safetensors::read_header(in), in);
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

LosslessResult restore_lossless(Catalog base, const std::string& delta,
                                const std::string& target,
                                const LosslessOptions& options,
                                const Progress& progress) {
  const io::Handle in = io::Handle::open_read(delta);
  const Index index(delta, safetensors::read_header(in), in);
  locate(base);
  const heap::Unbounded blocks;
  std::unordered_map<std::string_view, const Tensor*> named;
  for (const Tensor& tensor : base.tensors) named[tensor.name] = &tensor;
  std::vector<const Tensor*> tensors;
  const auto other_base = [&](const std::string& tensor,
                              const std::string& why) {
    return unfaithful_error({base.path, tensor},
                            "not the base that {} was made from: {}", delta,
                            why)
        .with_hint("give the checkpoint that was A in `ckpt diff A B`");
  };
  for (const BaseTensor& wanted : index.tensors()) {
    const auto found = named.find(wanted.name);
    if (found == named.end())
      throw other_base(wanted.name, "it has no such tensor");
    const Tensor& tensor = *found->second;
    if (tensor.dtype != wanted.dtype || tensor.shape != wanted.shape)
      throw other_base(
          wanted.name,
          fmt::format("{} {}, expected {} {}", ckpt::name(tensor.dtype),
                      to_string(tensor.shape), ckpt::name(wanted.dtype),
                      to_string(wanted.shape)));
    tensors.push_back(&tensor);
  }

  LosslessResult result{.files = index.files().size(),
                        .tensors = index.tensors().size(),
                        .packed = in.size()};
  for (const PackedFile& file : index.files()) {
    result.bytes += file.bytes;
    result.written.emplace_back(
        index.folder() ? file.path : io::base_name(target), file.bytes);
  }
  const io::StagingOptions place{.single_file = !index.folder(),
                                 .overwrite = options.overwrite,
                                 .sync = options.sync};
  if (options.dry_run) {
    io::Staging::check(target, place);
    return result;
  }
  const InterruptScope scope;
  io::Staging staging(target, place);
  staging.check_space(result.bytes);
  progress.begin("restoring", result.bytes);
  const size_t at_once = blocks_at_once(options);
  std::vector<Bytes> made(at_once);
  const auto unpack = [&](const Block& block) {
    Bytes frame(block.end - block.begin);
    in.read(index.payload() + block.begin, frame);
    Bytes planes(block.bytes), bytes(block.bytes);
    codec::unpack_zstd(frame, planes, {delta, {}});
    codec::join_planes(planes, block.step, bytes);
    if (!block.tensor) return bytes;
    const Tensor& tensor = *tensors[*block.tensor];
    const Bytes other =
        reshard::read_box(base, tensor, block.box, one_thread());
    if (digest(0, other) != block.digest)
      throw other_base(tensor.name,
                       fmt::format("other values in {} at {}",
                                   to_string(Shape(block.box.shape)),
                                   to_string(Shape(block.box.offset))));
    xor_with(bytes, other);
    return bytes;
  };
  for (const PackedFile& file : index.files()) {
    const std::string path = index.folder() ? file.path : io::base_name(target);
    staging.create(path, file.bytes);
    const io::Handle out =
        io::Handle::open_write(io::join(staging.root(), path));
    progress.file(path);
    Sha256 sum;
    uint64_t at = 0;
    in_batches(
        file.blocks.size(), at_once,
        [&](size_t i, size_t slot) { made[slot] = unpack(file.blocks[i]); },
        [&](size_t i, size_t slot) {
          sum.update(made[slot]);
          out.write(at, std::span<const std::byte>(made[slot]));
          at += made[slot].size();
          if (file.blocks[i].tensor) result.xored += made[slot].size();
          progress.advance(made[slot].size());
        });
    if (sum.hex() != file.sha256)
      throw input_error({delta, {}}, "{}: its bytes don't have their SHA-256",
                        file.path);
  }
  progress.end();
  staging.flush();
  Session::current()->watch.check_unchanged();
  staging.publish();
  return result;
}

}  // namespace ckpt::library
