// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/fairseq2/extras.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/fairseq2/family.h"
#include "formats/fairseq2/layout.h"
#include "formats/fairseq2/model.h"
#include "formats/fairseq2/optimizer.h"
#include "formats/fairseq2/scan.h"
#include "lib/cuts.h"
#include "lib/io/file.h"
#include "lib/tensor_part.h"

namespace ckpt::fairseq2 {
namespace {

using formats::ReadOptions;
using formats::Support;

// The last data-parallel ranks may be missing: no file says how many there
// were. Shapes do, whatever the family: in a layer that maps `model_dim` to
// itself, the ranks share the rows but not the columns.
//
//   ffn.inner_proj.weight   [inner, model]   sdp_00: [6, 20]  sdp_01: [6, 20]
//   ffn.output_proj.weight  [model, inner]   sdp_00: [7, 17]  sdp_01: [7, 17]
//                                     17 columns, and only 12 rows of inner
//
// A buffer is whole on every rank: running_mean [12] beside weight [6].

// No more ranks than this share the rows of a layer.
constexpr uint64_t kMostRanks = 1 << 16;

// How many of a tensor's rows there are, and how many another tensor promises.
// Both for one tensor-parallel rank.
struct Shared {
  const Tensor* tensor = nullptr;
  const Tensor* other = nullptr;
  uint64_t have = 0;
  uint64_t promised = 0;
};

class Pairs {
 public:
  explicit Pairs(const Catalog& catalog) : tp_(catalog.topology.tp) {
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) by_name_.emplace(tensor.name, &tensor);
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) look(tensor);
  }

  const std::vector<Shared>& all() const { return pairs_; }

 private:
  const Tensor* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  void look(const Tensor& tensor) {
    const auto stem = [&](std::string_view suffix) {
      return std::string(
          tensor.name.substr(0, tensor.name.size() - suffix.size()));
    };
    constexpr std::string_view kOutput = ".output_proj.weight";
    constexpr std::string_view kMean = ".running_mean";
    if (tensor.name.ends_with(kOutput)) {
      for (const char* inner : {".q_proj.weight", ".inner_proj.weight"})
        if (const Tensor* input = find(stem(kOutput) + inner)) {
          rows_are_columns(tensor, *input);
          rows_are_columns(*input, tensor);
        }
    } else if (tensor.name.ends_with(kMean) && tensor.shape.size() == 1) {
      if (const Tensor* weight = find(stem(kMean) + ".weight"))
        if (weight->shape.size() == 1 && !weight->dp_replicated)
          add(*weight, tensor, tensor.shape[0]);
    }
  }

  void rows_are_columns(const Tensor& rows, const Tensor& columns) {
    if (rows.shape.size() == 2 && columns.shape.size() == 2)
      add(rows, columns, columns.shape[1]);
  }

  void add(const Tensor& tensor, const Tensor& other, uint64_t promised) {
    Shared pair{&tensor, &other, tensor.shape[0], promised};
    if (tensor.tp.state == TpRule::State::kSplit && tensor.tp.dim == 0) {
      if (promised % tp_ != 0) return;
      pair.have /= tp_;
      pair.promised /= tp_;
    }
    pairs_.push_back(pair);
  }

  const uint64_t tp_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  std::vector<Shared> pairs_;
};

// True if `promised` rows over `ranks` ranks give the first `dp` of them the
// rows that there are.
bool fits(const Shared& pair, uint64_t dp, uint64_t ranks) {
  return cuts::chunk(pair.promised, ranks, dp).begin == pair.have;
}

// Throws input_error if every such pair shows the same number of ranks, and
// there are files of fewer. Ignores other contradictions: a family may have
// layers of its own.
void check_rows(const Grid& grid, const Catalog& catalog) {
  const Pairs pairs(catalog);
  const uint64_t dp = grid.dp();
  const Shared* shown = nullptr;
  for (const Shared& pair : pairs.all())
    if (pair.have < pair.promised && !shown) shown = &pair;
  if (!shown) return;
  uint64_t ranks = dp + 1;
  const auto all_fit = [&] {
    return std::ranges::all_of(
        pairs.all(), [&](const Shared& pair) { return fits(pair, dp, ranks); });
  };
  while (ranks < kMostRanks && !all_fit()) ++ranks;
  if (ranks == kMostRanks) return;
  const std::string& last = grid.files.at(0).at(0).back();
  throw input_error(
      {io::join(io::parent(last), numbered("sdp_", dp) + ".pt"),
       shown->tensor->name},
      "is missing: {} ranks hold {} of its {} rows, as {} shows; there were at "
      "least {} ranks",
      dp, shown->have, shown->promised, shown->other->name, ranks)
      .with_hint(
          "fetch the files of the last ranks; without them no tensor is "
          "whole");
}

Support supports(const std::string& path) {
  const Found found = locate(path);
  return {found.location.has_value(), found.why};
}

void add_strays(const Grid& grid, Catalog& catalog) {
  for (const std::string& path : grid.strays)
    catalog.problems.push_back(
        remark("stray_file", {path, {}}, "is not part of the checkpoint"));
}

Location locate_or_throw(const std::string& path) {
  Found found = locate(path);
  if (found.location) return *found.location;
  if (!io::is_directory(path) && !io::is_file(path))
    throw missing_error({path, {}}, "does not exist");
  throw missing_error({path, {}}, "is not a fairseq2 checkpoint: {}",
                      found.why);
}

Catalog begin_catalog(const std::string& path, const Location& location,
                      const Grid& grid) {
  Catalog catalog;
  catalog.format = "fairseq2";
  catalog.version = location.old ? "0.4" : "";
  catalog.path = location.path;
  if (location.level == Level::kBase) catalog.root = path;
  catalog.dialect = "fairseq2";
  catalog.topology = {
      .tp = grid.tp(), .pp = grid.pp(), .dp = grid.dp(), .ep = 1};
  if (!location.chosen.empty()) catalog.assumptions.push_back(location.chosen);
  add_strays(grid, catalog);
  return catalog;
}

// If only a part is counted, what is known about the others is dropped stage by
// stage.
void leave_others(Catalog& catalog) {
  if (!TensorPart::is_set()) return;
  for (Tensor& tensor : catalog.tensors)
    if (!TensorPart::wanted(tensor.name))
      std::vector<Piece>().swap(tensor.pieces);
  TensorPart::drop(catalog.crcs.size() * sizeof(StoredCrc));
  std::vector<StoredCrc>().swap(catalog.crcs);
}

Catalog read_catalog(const std::string& path, const ReadOptions& options) {
  const Location location = locate_or_throw(path);
  const Grid grid =
      location.old ? scan_old(location.path) : scan_grid(location.model_dir);
  Catalog catalog = begin_catalog(path, location, grid);
  const auto yaml_path = find_model_yaml(location);
  // Of a server, it comes together with the headers of the files.
  std::optional<ModelYaml> yaml;
  if (yaml_path) ask_for_yaml(*yaml_path);
  const auto read_yaml = [&] {
    if (yaml_path && !yaml) yaml = read_model_yaml(*yaml_path);
  };

  families::Rules rules;
  std::vector<std::vector<std::string>> order;
  read_stages(grid, location.old, catalog, options,
              [&](uint32_t pp, Stage stage) {
                read_yaml();
                if (pp == 0)
                  rules = choose_rules(options, yaml, stage, catalog);
                add_stage(stage, rules, catalog);
                order.push_back(parameter_order(stage, catalog));
                leave_others(catalog);
              });
  read_yaml();
  if (yaml)
    check_config(options, *yaml, catalog);
  else if (location.level == Level::kBase)
    catalog.problems.push_back(warning(
        "no_model_yaml", {path, {}},
        "there is no model.yaml, which says what the model is: its family is "
        "told by names and shapes, the rest is not known"));
  check_rows(grid, catalog);
  const std::string optimizer = io::join(location.path, "optimizer");
  if (location.level != Level::kModel && !location.old &&
      io::is_directory(optimizer))
    read_optimizer(optimizer, order, catalog, options);
  read_extras(location, yaml_path.value_or(""), catalog, options);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of("fairseq2", supports, read_catalog);
}

}  // namespace ckpt::fairseq2
