// SPDX-License-Identifier: Apache-2.0
#include "api/delta/lossless.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/delta/blocks.h"
#include "api/delta/index.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "lib/codec/pack.h"
#include "lib/decoding.h"
#include "lib/hash/digest.h"
#include "lib/hash/sha256.h"
#include "lib/heap.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/staging.h"
#include "lib/session.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

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

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
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

}  // namespace ckpt::library
