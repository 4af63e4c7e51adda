// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/rank_write.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/ranks/dtensor_write.h"
#include "formats/runs/ranks/mesh.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using text::printable;

Box part_of(const Shape& shape, const Placement& placement, uint32_t rank,
            const Grid& grid) {
  return placement.shard ? rows_of_rank(shape, placement.dim,
                                        grid.part_of(rank), grid.shards)
                         : Box::whole(shape);
}

class Writing {
 public:
  Writing(const std::string& folder, const std::string& pattern,
          const Catalog& catalog, const Grid& from, const Grid& to, bool plain)
      : pattern_(pattern),
        catalog_(catalog),
        from_(from),
        grid_(to),
        plain_(plain) {
    const auto files = rank_files(folder, pattern);
    path_ = io::join(folder, files->names[0]);
    first_ = torch::make_reader()->read_catalog(path_, {});
    if (!first_.skeleton || !first_.skeleton->document)
      throw unfaithful_error({path_, {}}, "has no nesting to be written again");
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      index_.emplace(catalog.tensors[t].name, t);
    target_.catalog = formats::catalog_like(catalog, "torch");
  }

  Target build() {
    for (uint32_t rank = 0; rank < grid_.ranks(); ++rank) add_rank(rank);
    return std::move(target_);
  }

 private:
  const Document& source() const { return *first_.skeleton->document; }

  void add_rank(uint32_t rank) {
    Document document;
    std::unordered_map<Id, Id> substitutes;
    std::vector<torch::TensorSlot> slots;
    std::vector<std::pair<size_t, Box>> boxes;
    MeshMaker meshes(source(), document, path_, rank, from_, grid_);
    for (const auto& [node, name] : first_.skeleton->tensors) {
      const auto found = index_.find(name);
      if (found == index_.end())
        throw bug_error({path_, printable(name)}, "is not in the catalog");
      const Tensor& tensor = catalog_.tensors[found->second];
      const auto dtensor = find_dtensor(source(), node);
      const Placement placement =
          dtensor ? placement_of(source(), dtensor->spec, tensor.shape, path_)
                  : Placement{};
      const Box box = part_of(tensor.shape, placement, rank, grid_);
      const bool whole = !dtensor;
      slots.push_back({.dtype = tensor.dtype,
                       .shape = box.shape,
                       .requires_grad = whole && tensor.requires_grad,
                       .parameter = whole && tensor.parameter});
      boxes.emplace_back(found->second, box);
      const Id slot = torch::add_placeholder(document, slots.size() - 1);
      if (!dtensor || plain_) {
        substitutes[node] = slot;
        continue;
      }
      substitutes[dtensor->local] = slot;
      substitutes[dtensor->spec] = meshes.spec(dtensor->spec);
    }
    for (const auto& [node, content] : first_.skeleton->storages)
      if (!meshes.replaces(node)) substitutes.try_emplace(node, slot_of(node));
    const Id root =
        document.import(source(), first_.skeleton->root, substitutes);
    const std::string name =
        fill(pattern_, {{"W", grid_.ranks()}, {"r", rank}});
    place(torch::plan_file(document, root, slots, torch::archive_root_of(name)),
          name, boxes);
  }

  // A storage of unknown use: neither a tensor nor a mesh covers it.
  Id slot_of(Id) const {
    throw unfaithful_error({path_, {}},
                           "holds tensors of a kind that is not known inside "
                           "of its values");
  }

  void place(torch::FilePlan plan, const std::string& name,
             const std::vector<std::pair<size_t, Box>>& boxes) {
    const auto file = static_cast<uint32_t>(target_.catalog.files.size());
    target_.catalog.files.push_back(
        {.path = name, .size = plan.file.size, .fill = {}});
    for (size_t i = 0; i < boxes.size(); ++i) {
      auto& pieces = target_.catalog.tensors[boxes[i].first].pieces;
      // Several ranks' empty parts are one box, without bytes.
      if (volume(boxes[i].second) == 0 &&
          std::ranges::any_of(pieces, [&](const Piece& piece) {
            return piece.box == boxes[i].second;
          }))
        continue;
      pieces.push_back(
          {.box = boxes[i].second,
           .flat = std::nullopt,
           .extent = {
               .offset = plan.data_offsets[i], .strides = {}, .file = file}});
    }
    plan.file.path = name;
    target_.files.push_back(std::move(plan.file));
  }

  const std::string pattern_;
  const Catalog& catalog_;
  const Grid from_, grid_;
  const bool plain_;  // tensors instead of DTensors
  std::string path_;  // of rank 0's file
  Catalog first_;
  std::unordered_map<std::string_view, size_t> index_;
  Target target_;
};

}  // namespace

Target lay_out_ranks(const std::string& folder, const std::string& pattern,
                     const Catalog& catalog, const Grid& from, const Grid& to,
                     bool plain) {
  return Writing(folder, pattern, catalog, from, to, plain).build();
}

}  // namespace ckpt::runs
