// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/original_write.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/runs/find/pattern.h"
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

class OriginalWriting {
 public:
  OriginalWriting(const std::string& folder, const std::string& pattern,
                  const Catalog& catalog, const std::vector<FlatUnit>& units,
                  const Grid& grid)
      : pattern_(pattern), units_(units), grid_(grid) {
    for (size_t t = 0; t < catalog.tensors.size(); ++t)
      index_.emplace(catalog.tensors[t].name, t);
    for (const FlatUnit& unit : units)
      for (size_t p = 0; p < unit.numbers.size(); ++p)
        parameters_.emplace(unit.numbers[p], &unit.parameters[p]);
    const auto reader = torch::make_reader();
    const auto files = rank_files(folder, pattern);
    for (const std::string& path : io::join_each(folder, files->names))
      read_entries(reader->read_catalog(path, {}), path);
    target_.catalog = formats::catalog_like(catalog, "torch");
  }

  Target build() {
    for (uint32_t rank = 0; rank < grid_.ranks(); ++rank) add_rank(rank);
    return std::move(target_);
  }

 private:
  // A parameter's states as some rank has them: {"step": …, "exp_avg": …}.
  struct Entry {
    std::shared_ptr<const Document> document;
    Id node = pickle::kNoId;
    std::vector<std::pair<Id, std::string>> tensors;  // node -> state
  };
  // The part of a slot that is written.
  struct Part {
    size_t tensor = 0;
    FlatRange range;
    bool whole = false;
  };

  [[noreturn]] void refuse(const std::string& path,
                           const std::string& name) const {
    throw unfaithful_error(
        {path, printable(name)},
        "is neither a rank's part of a parameter nor its step")
        .with_hint("--to dcp keeps the optimizer by name");
  }

  void read_entries(const Catalog& one, const std::string& path) {
    if (!one.skeleton || !one.skeleton->document)
      throw unfaithful_error({path, {}}, "has no nesting to be written again");
    const auto& document = one.skeleton->document;
    if (!one.skeleton->storages.empty()) refuse(path, "a value");
    const Id states = document->find(one.skeleton->root, "state");
    std::map<uint64_t, Entry> mine;
    const auto pairs = document->as_pairs(states);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
      if (const auto number = document->as_int((*pairs)[i]))
        mine[static_cast<uint64_t>(*number)] = {document, (*pairs)[i + 1], {}};
    std::map<std::string_view, const Tensor*> known;
    for (const Tensor& tensor : one.tensors)
      known.emplace(tensor.name, &tensor);
    for (const auto& [node, name] : one.skeleton->tensors) {
      const auto found = known.find(name);
      const auto number = found == known.end()
                              ? std::nullopt
                              : whole_number(found->second->param);
      if (!number || !mine.contains(*number)) refuse(path, name);
      mine[*number].tensors.emplace_back(node, found->second->state);
    }
    if (root_.document == nullptr) {
      root_ = {document, one.skeleton->root, {}};
      states_ = states;
    }
    entries_.merge(mine);
  }

  void add_rank(uint32_t rank) {
    std::map<uint64_t, FlatRange> ranges;
    for (const FlatUnit& unit : units_) {
      const auto parts = aligned_part(unit, grid_.part_of(rank), grid_.shards);
      for (size_t p = 0; p < parts.size(); ++p)
        ranges.emplace(unit.numbers[p], parts[p]);
    }
    Document document;
    std::vector<torch::TensorSlot> slots;
    std::vector<Part> parts;
    const Id states = document.add_container(pickle::Type::kDict);
    for (const auto& [number, entry] : entries_) {
      const auto found = ranges.find(number);
      if (found == ranges.end()) refuse(pattern_, std::to_string(number));
      if (found->second.begin == found->second.end) continue;
      std::unordered_map<Id, Id> substitutes;
      for (const auto& [node, state] : entry.tensors) {
        parts.push_back(part_of(number, state, found->second));
        slots.push_back(slot_of(parts.back()));
        substitutes[node] = torch::add_placeholder(document, slots.size() - 1);
      }
      document.set(states, document.add_int(static_cast<int64_t>(number)),
                   document.import(*entry.document, entry.node, substitutes));
    }
    const Id root =
        document.import(*root_.document, root_.node, {{states_, states}});
    const std::string name =
        fill(pattern_, {{"W", grid_.ranks()}, {"r", rank}});
    place(torch::plan_file(document, root, slots, torch::archive_root_of(name)),
          name, parts);
  }

  Part part_of(uint64_t number, const std::string& state,
               const FlatRange& range) const {
    const Parameter& parameter = *parameters_.at(number);
    const std::string name = parameter.name + "." + state;
    const auto found = index_.find(name);
    if (found == index_.end()) refuse(pattern_, name);
    Part part{.tensor = found->second, .range = range, .whole = false};
    const Tensor& tensor = target_.catalog.tensors[part.tensor];
    part.whole = tensor.shape.empty() ||
                 range == FlatRange{0, element_count(tensor.shape).value_or(0)};
    return part;
  }

  torch::TensorSlot slot_of(const Part& part) const {
    const Tensor& tensor = target_.catalog.tensors[part.tensor];
    Shape shape = tensor.shape;
    if (!shape.empty() && grid_.ranks() > 1)
      shape = {part.range.end - part.range.begin};
    return {.dtype = tensor.dtype, .shape = shape};
  }

  void place(torch::FilePlan plan, const std::string& name,
             const std::vector<Part>& parts) {
    const auto file = static_cast<uint32_t>(target_.catalog.files.size());
    target_.catalog.files.push_back(
        {.path = name, .size = plan.file.size, .fill = {}});
    for (size_t i = 0; i < parts.size(); ++i) {
      Tensor& tensor = target_.catalog.tensors[parts[i].tensor];
      Piece piece{
          .box = Box::whole(tensor.shape),
          .flat = std::nullopt,
          .extent = {
              .offset = plan.data_offsets[i], .strides = {}, .file = file}};
      if (!parts[i].whole) piece.flat = parts[i].range;
      tensor.pieces.push_back(std::move(piece));
    }
    plan.file.path = name;
    target_.files.push_back(std::move(plan.file));
  }

  const std::string pattern_;
  const std::vector<FlatUnit>& units_;
  const Grid grid_;
  std::map<uint64_t, const Parameter*> parameters_;
  std::map<uint64_t, Entry> entries_;  // by number
  Entry root_;                         // of rank 0's file
  Id states_ = pickle::kNoId;          // in it
  std::unordered_map<std::string_view, size_t> index_;
  Target target_;
};

}  // namespace

Target lay_out_original(const std::string& folder, const std::string& pattern,
                        const Catalog& catalog,
                        const std::vector<FlatUnit>& units, const Grid& grid) {
  return OriginalWriting(folder, pattern, catalog, units, grid).build();
}

}  // namespace ckpt::runs
