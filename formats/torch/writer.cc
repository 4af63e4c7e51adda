// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <tuple>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/weight_names.h"
#include "containers/torch/file_plan.h"
#include "containers/torch/skeleton.h"
#include "containers/torch/tree.h"
#include "formats/run_state.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::torch {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using Severity = Problem::Severity;

constexpr std::string_view kFormat = "torch";
// The object that holds a safetensors header's own metadata.
constexpr std::string_view kHeaderMetadata = "__metadata__";

// Tensors with the same tie and the same bytes are one tensor.
class Groups {
 public:
  // The first tensor of the group that `index` belongs to.
  size_t first(const Catalog& source, size_t index) {
    const Tensor& tensor = source.tensors[index];
    if (tensor.tie == 0 || tensor.pieces.size() != 1) return index;
    const Piece& piece = tensor.pieces[0];
    return groups_
        .try_emplace(
            {tensor.tie, piece.extent.file, piece.extent.offset,
             piece.extent.strides, tensor.shape, tensor.dtype, piece.transform},
            index)
        .first->second;
  }

 private:
  using Key =
      std::tuple<uint32_t, uint32_t, uint64_t, Dims, Shape, DType, uint8_t>;
  std::map<Key, size_t> groups_;
};

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source),
        layout_(layout),
        stem_(layout.single_file ? formats::Stem()
                                 : formats::stem_like(source, ".bin")) {}

  Target build() {
    target_.catalog = formats::catalog_like(source_, kFormat);
    for (size_t i = 0; i < source_.tensors.size(); ++i) add_slot(i);
    const auto files = split();
    if (files.size() == 1)
      add_whole();
    else
      add_shards(files);
    const bool keep = source_.dialect == "hf" && !layout_.single_file;
    formats::copy_sidecars(source_, keep, {}, target_);
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  void warn(Severity severity, std::string kind, std::string tensor,
            std::string message) {
    target_.problems.push_back(
        {severity, std::move(kind), {}, std::move(tensor), std::move(message)});
  }

  void add_slot(size_t index) {
    const Tensor& tensor = source_.tensors[index];
    check_materialisable(tensor, source_);
    TorchType type = torch_type(tensor.name, tensor.dtype, tensor.shape);
    const size_t first = groups_.first(source_, index);
    firsts_.push_back(first);
    slots_.push_back({.dtype = type.dtype,
                      .shape = type.shape,
                      .requires_grad = tensor.requires_grad,
                      .parameter = tensor.parameter,
                      .tie = kOwnStorage});
    if (first != index) {
      const uint32_t tie = static_cast<uint32_t>(first) + 1;
      for (const size_t i : {first, index}) {
        slots_[i].tie = tie;
        catalog().tensors[i].tie = tie;
      }
    }
  }

  // The tensors of each file, in catalog order, with a new file when the next
  // one does not fit; tied ones follow the first of them.
  std::vector<std::vector<size_t>> split() const {
    const uint64_t most = layout_.single_file || layout_.max_shard_size == 0
                              ? UINT64_MAX
                              : layout_.max_shard_size;
    std::vector<std::vector<size_t>> files(1);
    std::vector<size_t> file_of(slots_.size(), 0);
    uint64_t filled = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (firsts_[i] != i) {
        file_of[i] = file_of[firsts_[i]];
        files[file_of[i]].push_back(i);
        continue;
      }
      const uint64_t bytes = byte_size(source_.tensors[i]);
      if (!files.back().empty() && (filled > most || bytes > most - filled)) {
        files.emplace_back();
        filled = 0;
      }
      file_of[i] = files.size() - 1;
      files.back().push_back(i);
      filled += bytes;
    }
    return files;
  }

  // A source whose nesting contradicts itself has no nesting to write.
  void check_nesting() const {
    for (const Problem& problem : source_.problems)
      if (problem.kind == "planner_conflict")
        throw unfaithful_error({problem.file, problem.tensor}, "{}",
                               problem.message)
            .with_hint(
                "write a .safetensors file or a directory: their names "
                "are flat");
  }

  // Adds one file with everything, nested like the source.
  void add_whole() {
    check_nesting();
    const std::string path = layout_.single_file ? "" : stem_.file(1, 1);
    const std::string root =
        archive_root_of(layout_.single_file ? layout_.name : path);
    std::vector<size_t> all(slots_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;

    if (auto rewritten = rewrite_skeleton(source_, slots_)) {
      for (const std::string& note : rewritten->notes)
        warn(Severity::kWarning, "moved", {}, note);
      keep_objects();
      place(plan_file(rewritten->document, rewritten->root, slots_, root), path,
            all);
      return;
    }
    leave_objects();
    add_flat(all, path, root);
  }

  // Values in the skeleton's own document are in the file; others are not.
  void keep_objects() {
    for (const Object& object : source_.objects) {
      if (object.document == source_.skeleton->document)
        catalog().objects.push_back(object);
      else
        leave_object(object);
    }
  }
  void leave_objects() {
    for (const Object& object : source_.objects) leave_object(object);
  }
  void leave_object(const Object& object) {
    const bool note = object.name.starts_with(kHeaderMetadata);
    warn(note ? Severity::kNote : Severity::kWarning, "object_left_out",
         object.name,
         "a flat file of tensors cannot store this value; skipped");
  }

  // {"name": tensor, …}
  void add_flat(const std::vector<size_t>& ids, const std::string& path,
                const std::string& root) {
    formats::refuse_quantized(source_, "a flat file of tensors");
    Document document;
    const Id dict = document.add_container(Type::kDict);
    std::vector<TensorSlot> slots;
    for (const size_t id : ids) {
      const TensorSlot& slot = slots_[id];
      document.set(dict, document.add_string(source_.tensors[id].name),
                   add_placeholder(document, slots.size()));
      slots.push_back(slot);
    }
    place(plan_file(document, dict, slots, root), path, ids);
  }

  // Adds a planned file and the pieces of its tensors.
  void place(FilePlan plan, const std::string& path,
             const std::vector<size_t>& ids) {
    const uint32_t file = static_cast<uint32_t>(catalog().files.size());
    catalog().files.push_back({.path = path, .size = plan.file.size});
    for (size_t i = 0; i < ids.size(); ++i) {
      Tensor& tensor = catalog().tensors[ids[i]];
      tensor.pieces.push_back(
          {.box = Box::whole(tensor.shape),
           .flat = std::nullopt,
           .extent = {
               .offset = plan.data_offsets[i], .strides = {}, .file = file}});
    }
    plan.file.path = path;
    target_.files.push_back(std::move(plan.file));
  }

  void add_shards(const std::vector<std::vector<size_t>>& files) {
    leave_objects();
    if (source_.skeleton)
      target_.assumptions.push_back(
          "shards are flat: the nesting of the source is in the names alone");
    std::vector<formats::IndexEntry> weight_map;
    uint64_t total = 0;
    for (size_t f = 0; f < files.size(); ++f) {
      const std::string path = stem_.file(f + 1, files.size());
      add_flat(files[f], path, archive_root_of(path));
    }
    for (size_t f = 0; f < files.size(); ++f) {
      for (const size_t id : files[f]) {
        weight_map.push_back({source_.tensors[id].name, target_.files[f].path});
        if (firsts_[id] == id) total += byte_size(source_.tensors[id]);
      }
    }
    target_.files.push_back(formats::literal_file(
        stem_.index(), formats::write_index(weight_map, total)));
  }

  const Catalog& source_;
  const Layout& layout_;
  const formats::Stem stem_;
  Target target_;
  Groups groups_;
  std::vector<TensorSlot> slots_;  // one per tensor of the source
  std::vector<size_t> firsts_;     // of each tensor's group
};

Catalog review(Catalog source, const Layout&) {
  return runs::as_state_dict(std::move(source));
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::torch
