// SPDX-License-Identifier: Apache-2.0
// Turns an index into a catalog: pieces whose payload is located later.

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "containers/torch/item.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/objects.h"
#include "formats/dcp/subclass.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

// The most that a torch archive holds besides the bytes of its one tensor.
constexpr uint64_t kOverhead = 64 << 10;
// Nothing states the size of an object that comes out of a transform.
constexpr uint64_t kFreeObject = uint64_t{16} << 20;
constexpr uint64_t kMostObject = uint64_t{1} << 30;
constexpr uint64_t kMostRatio = 100;

class Adder {
 public:
  Adder(Metadata& metadata, Catalog& catalog, bool restricted)
      : metadata_(metadata), catalog_(catalog), restricted_(restricted) {}

  void add() {
    first_file_ = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.reserve(catalog_.files.size() + metadata_.files.size());
    for (size_t f = 0; f < metadata_.files.size(); ++f)
      catalog_.files.push_back(
          {.path = io::join(metadata_.directory, metadata_.files[f]),
           .size = metadata_.sizes[f]});
    catalog_.tensors.reserve(catalog_.tensors.size() +
                             metadata_.tensors.size());
    for (TensorEntry& entry : metadata_.tensors)
      if (!add_subclass(entry)) add_tensor(entry);
    catalog_.objects.reserve(catalog_.objects.size() + metadata_.bytes.size());
    for (const BytesEntry& entry : metadata_.bytes) add_object(entry);
    catalog_.problems.insert(catalog_.problems.end(),
                             metadata_.problems.begin(),
                             metadata_.problems.end());
    torch::add_globals(catalog_, metadata_.globals);
  }

 private:
  // An item shorter than its elements either holds a tensor subclass or is
  // damaged, which locate reports.
  bool add_subclass(const TensorEntry& entry) {
    if (entry.chunks.size() != 1) return false;
    const Chunk& chunk = entry.chunks[0];
    if (chunk.stored.transforms != kNoTransforms ||
        chunk.stored.length >= byte_size(entry.dtype, entry.size).value_or(0) ||
        chunk.box != Box::whole(entry.size))
      return false;
    const Extent extent = place(chunk.stored, 0);
    const io::Handle item =
        io::Handle::open_read(catalog_.files[extent.file].path)
            .slice(extent.offset, extent.archive);
    torch::Container opened;
    try {
      opened = torch::open_item(item, extent.file, extent.offset,
                                &catalog_.crcs, nullptr);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) throw;
      return false;
    }
    const auto subclass =
        subclass_of(*opened.document, opened.document->root());
    if (!subclass || subclass->dtype != entry.dtype ||
        subclass->shape != entry.size)
      return false;
    for (Tensor& part : parts_of(opened, opened.document->root(), entry.name)) {
      part.pinned = part.dtype;  // only the class knows what its elements mean
      catalog_.tensors.push_back(std::move(part));
    }
    if (restricted_) torch::check_globals(opened.globals, item.path());
    torch::add_globals(catalog_, opened.globals);
    catalog_.problems.push_back(remark(
        "tensor_subclass", {catalog_.files[extent.file].path, entry.name},
        "is a {}: its parts are shown", text::printable(subclass->class_name)));
    catalog_.objects.push_back({.name = entry.name,
                                .document = opened.document,
                                .node = opened.document->root(),
                                .file = extent.file,
                                .offset = extent.offset,
                                .bytes = extent.archive});
    return true;
  }

  // Moves the chunks out: a checkpoint has millions of them.
  void add_tensor(TensorEntry& entry) {
    Tensor& tensor = catalog_.tensors.emplace_back();
    tensor.name = entry.name;
    tensor.dtype = entry.dtype;
    tensor.shape = entry.size;
    tensor.kind = Kind::other;
    tensor.requires_grad = entry.requires_grad;
    if (!TensorPart::wanted(entry.name))
      return std::vector<Chunk>().swap(entry.chunks);
    tensor.pieces.reserve(entry.chunks.size());
    for (Chunk& chunk : entry.chunks) {
      const bool plain = chunk.stored.transforms == kNoTransforms;
      const uint64_t bytes =
          plain ? 0 : byte_size(entry.dtype, chunk.box.shape).value_or(0);
      Piece& piece = tensor.pieces.emplace_back();
      piece.box = std::move(chunk.box);
      piece.extent = place(chunk.stored, bytes + kOverhead);
    }
    std::vector<Chunk>().swap(entry.chunks);
  }

  void add_object(const BytesEntry& entry) {
    const uint64_t length = entry.stored.length;
    const uint64_t most = std::clamp(std::min(length, kMostObject) * kMostRatio,
                                     kFreeObject, kMostObject);
    const Extent extent = place(entry.stored, most);
    catalog_.objects.push_back({.name = entry.name,
                                .document = nullptr,
                                .node = 0,
                                .file = extent.file,
                                .offset = extent.offset,
                                .bytes = extent.archive});
  }

  // An item is either an archive in the file, or comes out of a transform; then
  // it is its own file, for whose size only a bound is known so far.
  Extent place(const Stored& stored, uint64_t most) {
    const uint32_t file = first_file_ + stored.file;
    Extent extent;
    if (stored.transforms == kNoTransforms) {
      extent.file = file;
      extent.offset = stored.offset;
      extent.archive = stored.length;
    } else {
      extent.file = static_cast<uint32_t>(catalog_.files.size());
      extent.archive = most;
      catalog_.files.push_back({.path = catalog_.files[file].path,
                                .size = most,
                                .codec = Codec::kZstd,
                                .packed_offset = stored.offset,
                                .packed_size = stored.length});
    }
    // Nothing can be found in an item of no bytes; locate or load_objects must
    // see that error.
    extent.archive = std::max<uint64_t>(extent.archive, 1);
    return extent;
  }

  Metadata& metadata_;
  Catalog& catalog_;
  const bool restricted_;
  uint32_t first_file_ = 0;
};

}  // namespace

void add_to_catalog(Metadata& metadata, Catalog& catalog,
                    const formats::ReadOptions& options) {
  Adder(metadata, catalog, options.restrict_globals).add();
  catalog.archive_opener = item_opener();
  catalog.object_opener = object_opener(options.restrict_globals);
}

}  // namespace ckpt::dcp
