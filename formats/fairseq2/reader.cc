// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/fairseq2/extras.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/fairseq2/family.h"
#include "formats/fairseq2/lost_ranks.h"
#include "formats/fairseq2/model.h"
#include "formats/fairseq2/optimizer.h"
#include "formats/fairseq2/scan.h"
#include "lib/io/file.h"
#include "lib/tensor_part.h"

namespace ckpt::fairseq2 {
namespace {

using formats::ReadOptions;
using formats::Support;

class Reader : public formats::Reader {
 public:
  std::string_view name() const override { return "fairseq2"; }

  Support supports(const std::string& path) const override {
    const Found found = locate(path);
    return {found.location.has_value(), found.why};
  }

  Catalog read_catalog(const std::string& path,
                       const ReadOptions& options) const override;
};

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

Catalog Reader::read_catalog(const std::string& path,
                             const ReadOptions& options) const {
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
  return std::make_unique<Reader>();
}

}  // namespace ckpt::fairseq2
