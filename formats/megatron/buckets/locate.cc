// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/buckets/locate.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "ckpt/error.h"

namespace ckpt::megatron {
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

}  // namespace ckpt::megatron
