// SPDX-License-Identifier: Apache-2.0
// Reads a distributed checkpoint of the torch_dist backend.
//
//   metadata.json                the backend; written last
//   .metadata                    the index: tensors and objects by their keys
//   __0_0.distcp  __0_1.distcp   items of rank 0 …
//   common.pt                    what all ranks share (cores before 0.19)
//   integrity.json               checksums of files (some cores from 0.17 on)
#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/torch/item.h"
#include "formats/dcp/directory.h"
#include "formats/dcp/metadata.h"
#include "formats/megatron/dist/catalog.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/megatron.h"
#include "formats/megatron/model/keys.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using formats::ReadOptions;
using formats::Support;

// Flattened tensors of cores 0.8 to 0.15, which torch_dist stores with another
// shape.
//
//   tensor   (G0 … Gk), cut into boxes of (l0 … lk), of each of which a
//            data-parallel rank holds elements [start, stop)
//   stored   size (G0/l0 … Gk/lk, l0 * … * lk)
//            chunk at (c0 … ck, start) of (1 … 1, stop - start)
//
// Viewed as it was: the piece is a flat range of box c. No byte moves.

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

// Restores the original shape of tensors that mcore_data names and, if it is
// gone, of optimizer state with its parameter's shape and one dimension more.
// Sets archive_opener if there are any. Throws input_error for chunks that are
// not such ranges.
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

constexpr DistContainer kContainer{
    .format = "megatron_torch_dist",
    .backend = "torch_dist",
    .unfinished = dcp::megatron_sign,
    .hint =
        "Megatron writes it last; use an older iteration, or read what is "
        "there with --from dcp"};
constexpr char kIndex[] = ".metadata";

// True for backends known to another reader.
bool is_foreign(const Config& config) {
  const Strategy* const known = look_up(
      Action::kLoadSharded, config.sharded_backend, config.sharded_version);
  if (known) return known->format != kContainer.format;
  // Another version than theirs: they say what they can.
  return config.sharded_backend == "zarr";
}

Support supports_dist(const std::string& path) {
  try {
    const DistFound found = locate_dist(path);
    // An unknown backend is refused here: no other reader can say more.
    if (!found.path.empty()) return {!is_foreign(found.config), found.why};
    if (!io::is_directory(path)) return {false, found.why};
    const std::string sign = dcp::megatron_sign(path);
    if (sign.empty()) return {false, found.why};
    return {true, "an unfinished save: " + sign};
  } catch (const Error& error) {
    // Damaged, but one of ours by its name.
    const std::string& where = error.where().path;
    const bool ours = io::base_name(where) == kConfigFile;
    return {ours, error.problem()};
  }
}

void check_index(const std::string& directory) {
  if (io::is_file(io::join(directory, kIndex))) return;
  for (const char* other : {".metadata.tmp", ".metadata.bck"})
    if (io::is_file(io::join(directory, other)))
      throw input_error({directory, {}},
                        "has no {}, but {}: a write of the index was cut short",
                        kIndex, other)
          .with_hint(
              "if it is whole, rename it to .metadata in a copy of the "
              "directory");
  throw missing_error({directory, {}}, "has no {}, the index of its tensors",
                      kIndex)
      .with_hint("fetch or copy the checkpoint again");
}

// The item in which newer cores keep the common part: a list of one.
Common read_common_object(const Object& object, Catalog& catalog,
                          const ReadOptions& options) {
  const File& file = catalog.files.at(object.file);
  const io::Handle handle = io::Handle::open_read(file.path);
  const torch::OpenedObject opened =
      torch::open_archive(catalog, object, handle);
  const torch::Container& container = opened.container;
  if (options.restrict_globals)
    torch::check_globals(container.globals, file.path);
  torch::add_globals(catalog, container.globals);
  return read_common_item(opened, file.path, catalog);
}

Common read_common(const std::string& directory, Catalog& catalog,
                   const ReadOptions& options) {
  const auto item =
      std::ranges::find(catalog.objects, kCommonObject, &Object::name);
  std::optional<Object> object;
  if (item != catalog.objects.end()) {
    object = *item;
    catalog.objects.erase(item);
  }
  const std::string path = io::join(directory, kCommonFile);
  if (io::is_file(path)) {
    if (object)
      catalog.problems.push_back(remark("two_common_parts", {path, {}},
                                        "goes before the object {}",
                                        kCommonObject));
    return read_common_file(path, catalog, options);
  }
  if (object) return read_common_object(*object, catalog, options);
  throw missing_error({path, {}}, "is missing, and there is no object {}",
                      kCommonObject)
      .with_hint(
          "without it Megatron can't load the checkpoint; the tensors "
          "can be read with --from dcp");
}

// Adds the tensors and objects of one container; returns its common part.
Common add_container(const std::string& directory, Catalog& catalog,
                     const ReadOptions& options) {
  check_index(directory);
  dcp::Metadata metadata =
      dcp::read_metadata(io::join(directory, kIndex), options);
  dcp::check_cover(metadata);
  dcp::add_to_catalog(metadata, catalog, options);
  undo_flattening(metadata, catalog);
  return read_common(directory, catalog, options);
}

Catalog read_catalog_dist(const std::string& path, const ReadOptions& options) {
  Catalog catalog = open_dist_catalog(path, kContainer, options);
  const std::string directory = catalog.path;
  const Common common = add_container(directory, catalog, options);
  finish_dist_catalog(catalog, common);
  add_strays(directory, catalog);
  return catalog;
}

// Adds entries that the last container's common part lacks: all of them say
// what kind of optimizer it is.
void add_other_objects(const Common& common, Catalog& catalog) {
  Catalog other;
  add_common_objects(common, other);
  for (Object& object : other.objects)
    if (std::ranges::find(catalog.objects, object.name, &Object::name) ==
        catalog.objects.end())
      catalog.objects.push_back(std::move(object));
}

void check_keys(const Catalog& catalog) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : catalog.tensors)
    if (!names.insert(tensor.name).second)
      throw input_error({catalog.path, text::printable(tensor.name)},
                        "is in two containers of the step");
}

}  // namespace

Catalog read_dist_parts(const std::string& path,
                        const std::vector<std::string>& containers,
                        const ReadOptions& options) {
  Catalog catalog;
  std::vector<Common> commons;
  for (const std::string& one : containers) {
    Catalog opened = open_dist_catalog(one, kContainer, options);
    if (commons.empty()) catalog = std::move(opened);
    catalog.path = path;
    commons.push_back(add_container(one, catalog, options));
  }
  check_keys(catalog);
  finish_dist_catalog(catalog, commons.back());
  commons.pop_back();
  for (const Common& common : commons) add_other_objects(common, catalog);
  for (const std::string& one : containers) add_strays(one, catalog);
  return catalog;
}

std::unique_ptr<formats::Reader> make_dist_reader() {
  return formats::reader_of(kContainer.format, supports_dist,
                            read_catalog_dist);
}

}  // namespace ckpt::megatron
