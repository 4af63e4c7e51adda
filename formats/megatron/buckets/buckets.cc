// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/buckets/fit.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kMain = "param";

// Pieces that are parts of archives: a stored chunk of a bucket may hold
// several boxes (gate and up of a gated layer). Until its archive is located,
// such a piece has the archive's offset plus the bytes of payload before it.
// That is inside the archive and identifies it.

class BucketChunks {
 public:
  // Adds the chunks of one bucket tensor, in its elements. Throws input_error
  // for chunks that overlap, or archives too small for their content.
  void add(const Catalog& catalog, const Tensor& tensor);

  struct Cut {
    FlatRange range;  // of the bucket
    Extent extent;
    uint8_t transform = kNoTransform;
  };
  // What stores elements [begin, end) of an added tensor, chunk by chunk.
  std::vector<Cut> cut(const Tensor& tensor, uint64_t begin,
                       uint64_t end) const;

  // Makes ckpt::locate find these archives, too.
  void install(Catalog& catalog) &&;

 private:
  struct Chunk {
    uint64_t begin = 0;  // elements of the bucket
    uint64_t end = 0;
    Piece piece;  // as the reader made it
  };
  struct Source {
    DType dtype = DType::f32;
    Shape shape;
    std::vector<Chunk> chunks;  // by begin
  };
  using Sources = std::unordered_map<std::string, Source>;
  // An archive and its owner.
  struct Archive {
    uint32_t file = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
    const Source* source = nullptr;
    const Piece* piece = nullptr;
    auto key() const { return std::pair(file, offset); }
  };
  static std::vector<Archive> archives_of(const Sources& sources,
                                          const Catalog& catalog);
  static void locate(const Sources& sources, Catalog& catalog,
                     const ArchiveOpener& inner);

  Sources sources_;  // by name
};

void BucketChunks::add(const Catalog& catalog, const Tensor& tensor) {
  Source source{tensor.dtype, tensor.shape, {}};
  const uint64_t element = element_size(tensor.dtype);
  for (const Piece& piece : tensor.pieces) {
    const uint64_t base = piece.box.offset[0];
    Chunk chunk{base, base + piece.box.shape[0], piece};
    if (piece.flat)
      chunk = {base + piece.flat->begin, base + piece.flat->end, piece};
    const uint64_t bytes = (chunk.end - chunk.begin) * element;
    if (piece.extent.archive && piece.extent.archive < bytes)
      throw input_error({catalog.files.at(piece.extent.file).path, tensor.name},
                        "an item of {} bytes for {} bytes of elements",
                        piece.extent.archive, bytes);
    if (chunk.begin < chunk.end) source.chunks.push_back(std::move(chunk));
  }
  std::ranges::sort(source.chunks, {}, &Chunk::begin);
  for (size_t i = 1; i < source.chunks.size(); ++i)
    if (source.chunks[i].begin < source.chunks[i - 1].end)
      throw input_error({catalog.path, tensor.name},
                        "two of its chunks hold element {}",
                        source.chunks[i].begin);
  sources_.emplace(tensor.name, std::move(source));
}

std::vector<BucketChunks::Cut> BucketChunks::cut(const Tensor& tensor,
                                                 uint64_t begin,
                                                 uint64_t end) const {
  const Source& source = sources_.at(tensor.name);
  const uint64_t element = element_size(tensor.dtype);
  std::vector<Cut> cuts;
  auto at = std::ranges::upper_bound(source.chunks, begin, {}, &Chunk::end);
  for (; at != source.chunks.end() && at->begin < end; ++at) {
    const uint64_t from = std::max(begin, at->begin);
    Cut cut{
        {from, std::min(end, at->end)}, at->piece.extent, at->piece.transform};
    const Dims& strides = at->piece.extent.strides;
    const uint64_t step = strides.empty() ? element : strides[0];
    if (step != element)
      throw unfaithful_error({{}, tensor.name}, "its elements lie apart");
    cut.extent.strides.clear();
    cut.extent.offset += (from - at->begin) * element;
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

std::vector<BucketChunks::Archive> BucketChunks::archives_of(
    const Sources& sources, const Catalog& catalog) {
  std::vector<Archive> all;
  for (const auto& [name, source] : sources)
    for (const Chunk& chunk : source.chunks) {
      const Extent& extent = chunk.piece.extent;
      if (extent.archive)
        all.push_back({extent.file, extent.offset, extent.archive, &source,
                       &chunk.piece});
    }
  std::ranges::sort(all, {}, &Archive::key);
  for (size_t i = 1; i < all.size(); ++i)
    if (all[i - 1].file == all[i].file &&
        all[i].offset - all[i - 1].offset < all[i - 1].size)
      throw input_error({catalog.files.at(all[i].file).path, {}},
                        "the item at byte {} begins inside of the one at {}",
                        all[i].offset, all[i - 1].offset);
  return all;
}

// Locates whole chunks as the reader knows them, then moves each piece from its
// place in the archive to its place in the payload. Ignores gaps, and what has
// been left out of the catalog since.
void BucketChunks::locate(const Sources& sources, Catalog& catalog,
                          const ArchiveOpener& inner) {
  const std::vector<Archive> archives = archives_of(sources, catalog);
  Catalog wanted;  // a tensor for each archive in use
  std::unordered_map<size_t, size_t> tensors;  // archive -> its tensor
  std::vector<std::pair<Piece*, size_t>> waiting;
  for (Tensor& tensor : catalog.tensors)
    for (Piece& piece : tensor.pieces) {
      const Extent& extent = piece.extent;
      if (!extent.archive) continue;
      const auto after = std::ranges::upper_bound(
          archives, std::pair(extent.file, extent.offset), {}, &Archive::key);
      if (after == archives.begin()) continue;
      const Archive& archive = *(after - 1);
      if (archive.file != extent.file ||
          extent.offset - archive.offset >= archive.size)
        continue;
      const size_t index = static_cast<size_t>(after - archives.begin()) - 1;
      waiting.emplace_back(&piece, index);
      if (!tensors.emplace(index, wanted.tensors.size()).second) continue;
      wanted.tensors.push_back({.name = tensor.name,
                                .dtype = archive.source->dtype,
                                .shape = archive.source->shape});
      wanted.tensors.back().pieces.push_back(*archive.piece);
    }
  if (waiting.empty()) return;
  wanted.format = catalog.format;
  wanted.path = catalog.path;
  wanted.files = std::move(catalog.files);
  // An item that can't be opened leaves the catalog as it was.
  try {
    inner.locate(wanted);
  } catch (...) {
    catalog.files = std::move(wanted.files);
    throw;
  }
  catalog.files = std::move(wanted.files);
  std::ranges::move(wanted.crcs, std::back_inserter(catalog.crcs));
  for (const auto& [piece, index] : waiting) {
    const Tensor& tensor = wanted.tensors[tensors.at(index)];
    const Piece& found = tensor.pieces.front();
    const Dims& strides = found.extent.strides;
    if (!strides.empty() && strides.back() != element_size(tensor.dtype))
      throw unfaithful_error({{}, tensor.name}, "its elements lie apart");
    const uint64_t before = piece->extent.offset - archives[index].offset;
    piece->extent = {.offset = found.extent.offset + before,
                     .strides = {},
                     .file = found.extent.file};
    piece->transform = found.transform;
  }
}

void BucketChunks::install(Catalog& catalog) && {
  if (!catalog.archive_opener) return;
  class Opener : public ArchiveOpener {
   public:
    Opener(Sources sources, std::shared_ptr<const ArchiveOpener> inner)
        : sources_(std::move(sources)), inner_(std::move(inner)) {}
    void locate(Catalog& wanted) const override {
      BucketChunks::locate(sources_, wanted, *inner_);
      inner_->locate(wanted);
    }

   private:
    Sources sources_;
    std::shared_ptr<const ArchiveOpener> inner_;
  };
  catalog.archive_opener = std::make_shared<const Opener>(
      std::move(sources_), std::move(catalog.archive_opener));
}

// The parameters of one state, by the model's tensor.
class Builder {
 public:
  Builder(const Catalog& catalog, const Fit& fit, const Groups& groups)
      : catalog_(catalog), fit_(fit), groups_(groups) {
    for (const auto& [id, buffers] : groups)
      for (const Buffer& buffer : buffers)
        for (const Bucket& bucket : buffer.buckets)
          for (const auto& [state, tensor] : bucket.states)
            chunks_.add(catalog, catalog.tensors[tensor]);
  }

  std::vector<Tensor> build() {
    for (const FittedBuffer& buffer : fit_.buffers)
      for (size_t i = 0; i < buffer.params.size(); ++i)
        add(buffer, buffer.params[i], buffer.layout.slots[i]);
    std::vector<Tensor> all;
    for (const std::string& state : order_)
      for (auto& [tensor, built] : states_[state])
        all.push_back(std::move(built));
    return all;
  }

  BucketChunks&& chunks() && { return std::move(chunks_); }
  size_t skipped() const { return skipped_; }

 private:
  void add(const FittedBuffer& buffer, const RankParam& param,
           const BufferSlot& slot) {
    const Bucket& bucket =
        groups_.at(buffer.group)[buffer.buffer].buckets[slot.bucket];
    for (const auto& [state, bucket_tensor] : bucket.states) {
      const Tensor& source = catalog_.tensors[bucket_tensor];
      uint64_t begin = slot.begin;
      for (const ParamPart& part : param.parts) {
        const uint64_t end = begin + volume(part.box);
        add_part(state, source, part, begin, end);
        begin = end;
      }
    }
  }

  void add_part(const std::string& state, const Tensor& source,
                const ParamPart& part, uint64_t begin, uint64_t end) {
    Tensor& tensor = target(state, source, part.tensor);
    std::vector<Piece> pieces;
    for (BucketChunks::Cut& cut : chunks_.cut(source, begin, end)) {
      Piece piece{part.box,
                  FlatRange{cut.range.begin - begin, cut.range.end - begin},
                  std::move(cut.extent), cut.transform};
      if (piece.flat->begin == 0 && piece.flat->end == end - begin)
        piece.flat.reset();
      pieces.push_back(std::move(piece));
    }
    add_pieces(tensor, std::move(pieces));
  }

  // Of what every tensor-parallel rank holds, takes the first rank's pieces;
  // others are replicas if they are cut alike.
  void add_pieces(Tensor& tensor, std::vector<Piece> pieces) {
    if (pieces.empty()) return;
    auto& ranges = held_[&tensor][pieces.front().box.offset];
    std::vector<FlatRange> mine;
    for (const Piece& piece : pieces)
      mine.push_back(piece.flat.value_or(FlatRange{0, volume(piece.box)}));
    if (ranges.empty()) ranges = mine;
    if (ranges != mine) {
      ++skipped_;
      return;
    }
    std::ranges::move(pieces, std::back_inserter(tensor.pieces));
  }

  Tensor& target(const std::string& state, const Tensor& source,
                 uint32_t model) {
    if (std::ranges::find(order_, state) == order_.end())
      order_.push_back(state);
    auto [at, fresh] = states_[state].try_emplace(model);
    const Tensor& param = catalog_.tensors[model];
    Tensor& tensor = at->second;
    if (fresh) {
      tensor.name = fmt::format("optimizer.state.{}.{}", state, param.name);
      tensor.dtype = source.dtype;
      tensor.shape = param.shape;
      tensor.kind = Kind::optim;
      tensor.param = param.name;
      tensor.state = state;
      tensor.tp = param.tp;
    }
    if (tensor.dtype != source.dtype)
      throw unfaithful_error({{}, source.name}, "is {}, other buckets are {}",
                             name(source.dtype), name(tensor.dtype));
    return tensor;
  }

  const Catalog& catalog_;
  const Fit& fit_;
  const Groups& groups_;
  BucketChunks chunks_;
  std::vector<std::string> order_;  // of the states
  std::map<std::string, std::map<uint32_t, Tensor>> states_;
  std::map<const Tensor*, std::map<Dims, std::vector<FlatRange>>> held_;
  size_t skipped_ = 0;
};

void keep_raw(Catalog& catalog, const std::string& why) {
  catalog.problems.push_back(
      warning("bucket_space", {catalog.path, {}},
              "optimizer state stays in flat buffers, whose parameters "
              "can't be told: {}",
              why));
}

void add_claims(Catalog& catalog, const std::vector<Tensor>& built) {
  for (const Tensor& tensor : built)
    if (tensor.state == kMain && tensor.dtype == DType::f32)
      catalog.claims.push_back(
          {tensor.name, tensor.param,
           "where it stands in the optimizer's flat buffers is inferred"});
}

// If nothing proves the state, at least its edges must be stored.
void check_proof(const Catalog& catalog, const std::vector<Tensor>& built) {
  const bool proof = std::ranges::any_of(built, [](const Tensor& tensor) {
    return tensor.state == kMain && tensor.dtype == DType::f32;
  });
  if (!proof && catalog.format == "megatron_zarr")
    throw unfaithful_error({}, "there are no float32 main weights to prove it");
}

}  // namespace

void view_buckets(Catalog& catalog, const Facts& facts) {
  std::string why;
  const auto groups = find_groups(catalog, why);
  if (!groups) return keep_raw(catalog, why);
  if (groups->empty()) return;
  try {
    const Fit fit = fit_buckets(catalog, *groups, facts);
    Builder builder(catalog, fit, *groups);
    std::vector<Tensor> built = builder.build();
    check_proof(catalog, built);
    if (builder.skipped())
      catalog.assumptions.push_back(fmt::format(
          "optimizer state: {} copies of replicated parameters are cut in "
          "another way and were not compared",
          builder.skipped()));
    catalog.assumptions.push_back(fmt::format(
        "optimizer state: {} flat buffers are seen as {} tensors; the order of "
        "their parameters is inferred ({}) and proven by the main weights",
        fit.buffers.size(), built.size(), fit.how));
    add_claims(catalog, built);
    std::erase_if(catalog.tensors, [](const Tensor& tensor) {
      return parse_bucket_key(tensor.name).has_value();
    });
    std::ranges::move(built, std::back_inserter(catalog.tensors));
    std::move(builder).chunks().install(catalog);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    keep_raw(catalog, error.what());
  }
}

}  // namespace ckpt::megatron
