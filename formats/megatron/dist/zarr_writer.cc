// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint of the zarr backend, for a topology of the user's choice:
// what cores up to 0.15 write themselves, byte for byte except common.pt.
#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/tree.h"
#include "containers/zarr/array.h"
#include "formats/dcp/value_item.h"
#include "formats/megatron/dist/boxes.h"
#include "formats/megatron/dist/objects.h"
#include "formats/megatron/dist/review.h"
#include "formats/megatron/dist/target.h"
#include "formats/megatron/dist/zarr_chunks.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/ranks.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/object_archive.h"
#include "formats/megatron/strategy.h"
#include "formats/megatron/zarr.h"
#include "formats/target.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kFormat = "megatron_zarr";
constexpr std::string_view kObjectFile = ".pt";

class ZarrBuilder {
 public:
  ZarrBuilder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        topology_(layout.topology),
        directory_(directory_for(source)),
        keys_(keys_of(source.tensors)),
        facts_(facts_with_shapes(source, keys_)),
        split_(split_for(facts_, layout)) {
    // The files have no stages; the args give them.
    if (const Wanted wanted = wanted_of(layout); !wanted.stage_layers.empty())
      Stages(source, keys_, facts_, std::max<uint32_t>(1, topology_.pp),
             wanted.stage_layers);
  }

  Target build() {
    Catalog& catalog = target_.catalog;
    catalog.format = kFormat;
    catalog.version = "1";
    catalog.family = source_.family;
    catalog.dialect = "mcore";
    catalog.topology = topology_;
    for (size_t t = 0; t < keys_.size(); ++t)
      add_tensor(source_.tensors[t], keys_[t]);
    for (size_t t = 0; t < chunks_.size(); ++t) describe(t);
    add_objects();
    add_common(source_, facts_, layout_, directory_, target_);
    add_text(at(kConfigFile), config_text("zarr"), target_);
    add_sidecars(source_, layout_, directory_, target_);
    add_tracker(directory_, target_);
    tell_kept();
    return std::move(target_);
  }

 private:
  // One file per chunk; files with payload come first.
  void add_tensor(const Tensor& tensor, const Key& key) {
    torch::check_materialisable(tensor, source_);
    check_zarr_tensor(tensor);
    check_split(source_, tensor, key, split_);
    const Dims chunks = zarr_chunks(tensor, key, split_);
    const Dims grid = zarr::grid_of(tensor.shape, chunks);
    check_count(tensor, grid);
    kept_ += !has_rule(tensor, key) && chunks != tensor.shape;
    Tensor& added =
        target_.catalog.tensors.emplace_back(formats::without_pieces(tensor));
    added.tie = 0;
    const uint64_t bytes = byte_size(tensor.dtype, chunks).value_or(0);
    const Dims strides = row_major_strides(grid);
    const uint64_t count = element_count(grid).value_or(0);
    added.pieces.reserve(count);
    for (uint64_t cell = 0; cell < count; ++cell) {
      Dims index(grid.size(), 0);
      for (uint64_t rest = cell, d = 0; d < grid.size(); ++d) {
        index[d] = rest / strides[d];
        rest %= strides[d];
      }
      Piece piece;
      piece.box = {index, chunks};
      for (size_t d = 0; d < grid.size(); ++d) piece.box.offset[d] *= chunks[d];
      piece.extent.file =
          add_file(io::join(tensor.name, zarr::chunk_name(index, '.')), bytes);
      added.pieces.push_back(std::move(piece));
    }
    chunks_.push_back(chunks);
  }

  // More files of one tensor than any job writes.
  void check_count(const Tensor& tensor, const Dims& grid) const {
    constexpr uint64_t kMost = uint64_t{1} << 24;
    if (element_count(grid).value_or(UINT64_MAX) > kMost)
      throw resource_error({{}, text::printable(tensor.name)},
                           "a grid of {} chunks is more than {} files",
                           to_string(grid), kMost);
  }

  std::string at(const std::string& name) const {
    return io::join(directory_, name);
  }

  uint32_t add_file(const std::string& name, uint64_t size) {
    const auto number = static_cast<uint32_t>(target_.catalog.files.size());
    TargetFile& file = target_.files.emplace_back();
    file.path = at(name);
    file.size = size;
    target_.catalog.files.push_back({.path = file.path, .size = size});
    return number;
  }

  void describe(size_t t) {
    const Tensor& tensor = target_.catalog.tensors[t];
    add_text(at(io::join(tensor.name, ".zarray")),
             zarr::describe(tensor.dtype, tensor.shape, chunks_[t]), target_);
  }

  void tell_kept() {
    if (kept_ != 0)
      target_.assumptions.push_back(fmt::format(
          "{} tensors of modules that are not known keep the boxes that the "
          "source has",
          kept_));
  }

  void add_objects() {
    for (const Object* object : kept_objects(source_, topology_, target_)) {
      add_object(*object);
      target_.catalog.objects.push_back(*object);
    }
    pickle::Document document;
    const pickle::Id none = document.add_none();
    for (const std::string& name :
         missing_extra_states(source_, keys_, facts_, target_))
      add_text(at(file_of(name)),
               dcp::value_item(source_, name, document, none, /*wrap=*/false),
               target_);
  }

  // No two names may become one file, and none may leave the directory.
  std::string file_of(const std::string& name) const {
    const size_t slash = name.rfind('/');
    const std::string key = name.substr(0, slash);
    if (!parse_object_key(name) || key.find('/') != std::string::npos ||
        key.find('\0') != std::string::npos || key.empty() || key == "." ||
        key == ".." || key.size() > 255 || name.size() - key.size() > 252)
      throw unfaithful_error({{}, text::printable(name)},
                             "the object's name can't be a directory's and a "
                             "file's")
          .with_hint("leave it out (--exclude), or write megatron_torch_dist");
    return name + std::string(kObjectFile);
  }

  void add_object(const Object& object) {
    const std::string name = file_of(object.name);
    if (object.bytes == 0) {
      add_text(at(name),
               dcp::value_item(source_, object.name, *object.document,
                               object.node, /*wrap=*/false),
               target_);
      return;
    }
    if (form_of(source_.format) != Form::kBare ||
        source_.files.at(object.file).codec != Codec::kRaw) {
      add_text(at(name),
               object_archive(source_, object, Form::kBare,
                              torch::archive_root_of(name)),
               target_);
      return;
    }
    TargetFile& file = target_.files[add_file(name, object.bytes)];
    file.carried.push_back({.offset = 0,
                            .size = object.bytes,
                            .source_file = object.file,
                            .source_offset = object.offset});
  }

  const Catalog& source_;
  const Layout& layout_;
  const Topology topology_;
  const std::string directory_;
  const KeyList keys_;  // of the source's tensors
  const Facts facts_;
  const DistSplit split_;
  std::vector<Dims> chunks_;  // by tensor
  uint64_t kept_ = 0;         // tensors with the source's boxes
  Target target_;
};

Target lay_out_zarr(const Catalog& source, const Layout& layout) {
  if (layout.single_file)
    throw usage_error({}, "a distributed checkpoint is a directory");
  if (layout.max_shard_size != 0)
    throw usage_error({}, "--max-shard-size does not go with {}", kFormat)
        .with_hint("a rank's box is a file: --tp N makes them smaller");
  return ZarrBuilder(source, layout).build();
}

}  // namespace

std::unique_ptr<formats::Writer> make_zarr_writer() {
  return formats::writer_of(kFormat, review_for_dist, lay_out_zarr, false);
}

}  // namespace ckpt::megatron
