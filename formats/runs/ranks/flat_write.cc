// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/flat_write.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/ranks/ranks.h"
#include "formats/target.h"
#include "formats/torch/torch.h"
#include "lib/cuts.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using pickle::Document;
using pickle::Id;
using text::printable;
using Units = std::vector<FlatUnit>;

// One rank's part of a state of a unit; a step is whole.
struct Share {
  size_t unit = 0;
  std::string state;
  bool scalar = false;
  uint64_t size = 0;  // elements
};

class FlatWriting {
 public:
  FlatWriting(const std::string& folder, const std::string& pattern,
              const Catalog& catalog, const Units& units, const Grid& grid)
      : pattern_(pattern), units_(units), grid_(grid) {
    path_ = io::join(folder, rank_files(folder, pattern)->names[0]);
    first_ = torch::make_reader()->read_catalog(path_, {});
    if (!first_.skeleton || !first_.skeleton->document)
      throw unfaithful_error({path_, {}}, "has no nesting to be written again");
    for (const Tensor& tensor : first_.tensors)
      stored_.emplace(tensor.name, &tensor);
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      index_.emplace(catalog.tensors[t].name, t);
    target_.catalog = formats::catalog_like(catalog, "torch");
  }

  Target build() {
    for (uint32_t rank = 0; rank < grid_.ranks(); ++rank) add_rank(rank);
    return std::move(target_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name) const {
    throw unfaithful_error({path_, printable(name)},
                           "is not a part of a flat parameter, nor its step")
        .with_hint("--to dcp keeps the optimizer by name");
  }

  void add_rank(uint32_t rank) {
    const Document& source = *first_.skeleton->document;
    Document document;
    std::unordered_map<Id, Id> substitutes;
    std::vector<torch::TensorSlot> slots;
    std::vector<Share> parts;
    for (const auto& [node, name] : first_.skeleton->tensors) {
      parts.push_back(share_of(name));
      const Share& part = parts.back();
      Shape shape;
      if (!part.scalar) shape = {part.size};
      slots.push_back({.dtype = stored_.at(name)->dtype, .shape = shape});
      substitutes[node] = torch::add_placeholder(document, slots.size() - 1);
    }
    if (!first_.skeleton->storages.empty()) refuse("a value");
    const Id root = document.import(source, first_.skeleton->root, substitutes);
    const std::string name =
        fill(pattern_, {{"W", grid_.ranks()}, {"r", rank}});
    torch::FilePlan plan =
        torch::plan_file(document, root, slots, torch::archive_root_of(name));
    plan.file.path = name;
    const auto file = static_cast<uint32_t>(target_.catalog.files.size());
    target_.catalog.files.push_back(
        {.path = name, .size = plan.file.size, .fill = {}});
    std::vector<Literal> literals = plan.file.literals.get();
    for (size_t i = 0; i < parts.size(); ++i)
      place(parts[i], grid_.part_of(rank), file, plan.data_offsets[i],
            literals);
    std::ranges::sort(literals, {}, &Literal::offset);
    plan.file.literals = std::move(literals);
    target_.files.push_back(std::move(plan.file));
  }

  Share share_of(const std::string& name) const {
    const auto found = stored_.find(name);
    if (found == stored_.end()) refuse(name);
    const Tensor& tensor = *found->second;
    const auto number = whole_number(tensor.param);
    if (!number || *number >= units_.size()) refuse(name);
    Share part{.unit = *number, .state = tensor.state};
    part.scalar = tensor.shape.empty();
    if (!part.scalar && tensor.shape.size() != 1) refuse(name);
    part.size = cuts::chunk_size(units_[part.unit].elements, grid_.shards);
    return part;
  }

  Tensor& target_of(const Parameter& parameter, const std::string& state) {
    const auto found = index_.find(parameter.name + "." + state);
    if (found == index_.end()) refuse(parameter.name + "." + state);
    return target_.catalog.tensors[found->second];
  }

  void place(const Share& part, uint32_t index, uint32_t file, uint64_t offset,
             std::vector<Literal>& literals) {
    if (part.scalar) return place_step(part, file, offset);
    const uint64_t first = index * part.size;
    uint64_t item = 1, begin = 0, filled = 0;
    for (const Parameter& parameter : units_[part.unit].parameters) {
      const uint64_t count = element_count(parameter.shape).value_or(0);
      Tensor& tensor = target_of(parameter, part.state);
      item = element_size(tensor.dtype);
      const uint64_t from = std::max(begin, first);
      const uint64_t to = std::min(begin + count, first + part.size);
      if (from < to) {
        Piece piece;
        piece.box = Box::whole(tensor.shape);
        const FlatRange range{from - begin, to - begin};
        if (range != FlatRange{0, count}) piece.flat = range;
        piece.extent = {.offset = offset + (from - first) * item,
                        .strides = {},
                        .file = file};
        tensor.pieces.push_back(std::move(piece));
        filled = to - first;
      }
      begin += count;
    }
    if (filled < part.size)
      literals.push_back({offset + filled * item,
                          std::string((part.size - filled) * item, '\0')});
  }

  // A unit has one step, shared by its parameters.
  void place_step(const Share& part, uint32_t file, uint64_t offset) {
    const auto& unit = units_[part.unit].parameters;
    uint32_t tie = 0;
    for (const Parameter& parameter : unit) {
      Tensor& tensor = target_of(parameter, part.state);
      if (tie == 0 && unit.size() > 1)
        tie = tensor.tie != 0 ? tensor.tie : ++ties_;
      tensor.tie = tie;
      tensor.pieces.push_back(
          {.box = Box::whole(tensor.shape),
           .flat = std::nullopt,
           .extent = {.offset = offset, .strides = {}, .file = file}});
    }
  }

  const std::string pattern_;
  const Units& units_;
  const Grid grid_;
  std::string path_;  // of rank 0's file
  Catalog first_;
  std::unordered_map<std::string_view, const Tensor*> stored_;
  std::unordered_map<std::string_view, size_t> index_;
  Target target_;
  uint32_t ties_ = 0;
};

}  // namespace

Target lay_out_flat(const std::string& folder, const std::string& pattern,
                    const Catalog& catalog, const Units& units,
                    const Grid& grid) {
  return FlatWriting(folder, pattern, catalog, units, grid).build();
}

}  // namespace ckpt::runs
