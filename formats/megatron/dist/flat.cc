// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/flat.h"

#include <memory>
#include <string_view>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"

namespace ckpt::megatron {
namespace {

// The shape of the boxes that a stored size stands for. Nothing if they don't
// fit.
std::optional<Shape> box_shape(const Shape& stored, const Shape& original) {
  if (stored.size() != original.size() + 1) return std::nullopt;
  Shape box;
  for (size_t d = 0; d < original.size(); ++d) {
    if (stored[d] == 0 || original[d] % stored[d] != 0) return std::nullopt;
    box.push_back(original[d] / stored[d]);
  }
  const auto elements = element_count(box);
  if (!elements || *elements != stored.back()) return std::nullopt;
  return box;
}

class Undo {
 public:
  Undo(const Catalog& catalog, Tensor& tensor, const Shape& original,
       const Shape& box)
      : catalog_(catalog), tensor_(tensor), original_(original), box_(box) {}

  void run() {
    for (Piece& piece : tensor_.pieces) view(piece);
    tensor_.shape = original_;
  }

 private:
  void view(Piece& piece) const {
    const size_t rank = box_.size();
    Box box{Dims(rank, 0), box_};
    for (size_t d = 0; d < rank; ++d) {
      if (piece.box.shape[d] != 1)
        throw input_error({catalog_.path, tensor_.name},
                          "is stored flattened, but a chunk has shape {} at {}",
                          to_string(piece.box.shape),
                          to_string(piece.box.offset));
      // Inside the stored size, so inside the original one.
      box.offset[d] = piece.box.offset[d] * box_[d];
    }
    const uint64_t begin = piece.box.offset[rank];
    piece.flat = FlatRange{begin, begin + piece.box.shape[rank]};
    piece.box = std::move(box);
  }

  const Catalog& catalog_;
  Tensor& tensor_;
  const Shape& original_;
  const Shape& box_;
};

void undo(Catalog& catalog, Tensor& tensor, const Shape& original,
          const Shape& box) {
  Undo(catalog, tensor, original, box).run();
}

// The stored shape is (1, …, 1, elements).
Box stored_box(const Piece& piece) {
  Dims shape(piece.box.shape.size(), 1);
  shape.push_back(piece.flat->end - piece.flat->begin);
  return Box::whole(shape);
}

// Opens the archives of flat ranges as they are in the file.
void locate_flattened(Catalog& catalog) {
  struct Seen {
    uint32_t tensor;
    uint32_t piece;
    Box box;
    FlatRange flat;
  };
  std::vector<Seen> all;
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t) {
    auto& pieces = catalog.tensors[t].pieces;
    for (uint32_t p = 0; p < pieces.size(); ++p) {
      Piece& piece = pieces[p];
      if (piece.extent.archive == 0 || !piece.flat) continue;
      Box stored = stored_box(piece);
      all.push_back({t, p, std::move(piece.box), *piece.flat});
      piece.box = std::move(stored);
      piece.flat.reset();
    }
  }
  dcp::locate_items(catalog);
  for (Seen& seen : all) {
    Piece& piece = catalog.tensors[seen.tensor].pieces[seen.piece];
    if (!piece.extent.strides.empty())
      throw input_error({catalog.files.at(piece.extent.file).path,
                         catalog.tensors[seen.tensor].name},
                        "a flattened part is not contiguous");
    piece.box = std::move(seen.box);
    piece.flat = seen.flat;
  }
}

class FlattenedItems : public ArchiveOpener {
 public:
  void locate(Catalog& catalog) const override { locate_flattened(catalog); }
};

}  // namespace

void undo_flattening(const dcp::Metadata& metadata, Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> models;
  for (const Tensor& tensor : catalog.tensors)
    if (parse_key(tensor.name).state.empty())
      models.emplace(tensor.name, &tensor);
  size_t named = 0, guessed = 0;
  for (Tensor& tensor : catalog.tensors) {
    const auto known = metadata.original_shapes.find(tensor.name);
    if (known != metadata.original_shapes.end()) {
      const auto box = box_shape(tensor.shape, known->second);
      if (!box)
        throw input_error({metadata.path, tensor.name},
                          "a size of {} can't be the flattened form of {}",
                          to_string(tensor.shape), to_string(known->second));
      undo(catalog, tensor, known->second, *box);
      ++named;
      continue;
    }
    const Key key = parse_key(tensor.name);
    if (metadata.has_mcore_data || key.state.empty()) continue;
    const auto model = models.find(key.model);
    if (model == models.end()) continue;
    const Shape original = model->second->shape;
    const auto box = box_shape(tensor.shape, original);
    if (!box) continue;
    undo(catalog, tensor, original, *box);
    ++guessed;
  }
  if (named + guessed == 0) return;
  catalog.archive_opener = std::make_shared<const FlattenedItems>();
  catalog.assumptions.push_back(fmt::format(
      "{} flattened tensors are seen in their own shape: {}", named + guessed,
      guessed == 0 ? "mcore_data of .metadata"
                   : "that of their parameters, .metadata lacks mcore_data"));
}

}  // namespace ckpt::megatron
