// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/buckets/buckets.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/state/run_config.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using State = TpRule::State;

std::string_view last_component(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

void classify(Tensor& tensor, const Key& key) {
  tensor.kind = Kind::model;
  if (!key.state.empty()) {
    tensor.kind = Kind::optim;
    tensor.param = key.model;
    tensor.state = key.state;
  } else if (is_bucket_key(tensor.name)) {
    tensor.kind = Kind::optim;
    tensor.state = last_component(tensor.name);
  }
}

// Dimensions along which the first box is smaller than the tensor. All boxes of
// a regular grid are alike.
std::vector<uint32_t> cut_dims(const Tensor& tensor, uint32_t axes) {
  std::vector<uint32_t> dims;
  if (tensor.pieces.empty()) return dims;
  const Shape& box = tensor.pieces[0].box.shape;
  for (uint32_t d = axes; d < tensor.shape.size(); ++d)
    if (box[d] < tensor.shape[d]) dims.push_back(d);
  return dims;
}

// What the boxes show takes precedence over the module's usual rule.
TpRule rule_of(const Tensor& tensor, const Key& key, const Facts& facts) {
  if (is_bucket_key(tensor.name)) return {};
  const TpRule table = tp_rule(key, facts);
  const std::vector<uint32_t> dims = cut_dims(tensor, key.axes());
  if (dims.empty()) return table;
  if (dims.size() > 1) return {};
  if (table.state == State::kSplit && table.dim == dims[0]) return table;
  return TpRule::split(dims[0]);
}

// Without args: into how many parts shared tensors are cut.
uint64_t tp_by_boxes(const Catalog& catalog, const Facts& facts) {
  for (const Tensor& tensor : catalog.tensors) {
    const Key key = parse_key(tensor.name);
    const TpRule rule = tp_rule(key, facts);
    if (tensor.kind != Kind::model || rule.state != State::kSplit ||
        key.is_expert() || place_of(key) == Where::kAnywhere)
      continue;
    if (rule.dim >= tensor.shape.size() || tensor.pieces.empty()) continue;
    const uint64_t part = tensor.pieces[0].box.shape[rule.dim];
    const uint64_t whole = tensor.shape[rule.dim];
    if (part == 0 || part == whole || whole % part != 0) continue;
    const uint64_t parts = whole / part;
    if (parts % rule.groups != 0) continue;
    return std::min<uint64_t>(parts / rule.groups, uint64_t{1} << 20);
  }
  return 1;
}

uint64_t writers(const Catalog& catalog) {
  std::set<uint64_t> ranks;
  for (const File& file : catalog.files)
    if (const auto rank = writer_rank(io::base_name(file.path)))
      ranks.insert(*rank);
  return std::max<uint64_t>(1, ranks.size());
}

// Megatron-Bridge leaves no args: run_config.yaml gives the ranks.
bool by_run_config(Catalog& catalog, const Facts& facts) {
  if (facts.tp || facts.pp) return false;
  Facts own;
  try {
    own = run_config_facts(run_config(catalog));
  } catch (const Error& error) {
    catalog.problems.push_back(
        warning("run_config", {io::join(catalog.path, kRunConfigFile), {}},
                "is not read: {}", error.problem()));
  }
  if (!own.tp || !own.pp) return false;
  catalog.topology = topology_of(own);
  catalog.topology.dp = static_cast<uint32_t>(
      std::max<uint64_t>(1, writers(catalog) / (*own.tp * *own.pp)));
  catalog.assumptions.push_back(
      fmt::format("topology: {}, dp by the files", kRunConfigFile));
  return true;
}

void set_topology(Catalog& catalog, const Facts& facts) {
  if (by_run_config(catalog, facts)) return;
  catalog.topology = topology_of(facts);
  if (facts.tp && facts.pp) {
    catalog.assumptions.push_back("topology: args of the common part");
    return;
  }
  const uint64_t tp = facts.tp.value_or(tp_by_boxes(catalog, facts));
  catalog.topology.tp = static_cast<uint32_t>(tp);
  const uint64_t model = tp * facts.pp.value_or(1);
  if (!facts.dp)
    catalog.topology.dp =
        static_cast<uint32_t>(std::max<uint64_t>(1, writers(catalog) / model));
  catalog.assumptions.push_back(
      "topology: no args say it; tp is by the boxes, dp by the files, pipeline "
      "stages can't be seen");
}

// All objects of one grid.
struct Grid {
  std::vector<uint64_t> shape;
  std::set<std::vector<uint64_t>> found;
  std::string path;
};

void check_grid(const std::string& key, const Grid& grid, Catalog& catalog) {
  uint64_t count = 1;
  for (const uint64_t extent : grid.shape) {
    const auto product = checked_mul(count, extent);
    if (!product)
      throw input_error({grid.path, key}, "a grid of {} objects",
                        to_string(Dims(grid.shape)));
    count = *product;
  }
  if (count == grid.found.size()) return;
  catalog.problems.push_back(
      damage("object_grid", {grid.path, key},
             "{} of the {} objects of a grid of {} are there",
             grid.found.size(), count, to_string(Dims(grid.shape))));
}

void check_grids(Catalog& catalog) {
  std::map<std::string, Grid, std::less<>> grids;
  for (const Object& object : catalog.objects) {
    const auto key = parse_object_key(object.name);
    if (!key) continue;
    auto found = grids.find(key->key);
    if (found == grids.end())
      found = grids.emplace(key->key, Grid{key->grid, {}, catalog.path}).first;
    if (found->second.shape != key->grid)
      throw input_error({catalog.path, object.name},
                        "is of a grid of {}, other objects of its key are of "
                        "one of {}",
                        to_string(Dims(key->grid)),
                        to_string(Dims(found->second.shape)));
    found->second.found.insert(key->offset);
  }
  for (const auto& [key, grid] : grids) check_grid(key, grid, catalog);
}

DistFound locate_or_throw(const std::string& path,
                          const DistContainer& container) {
  DistFound found = locate_dist(path);
  if (!found.path.empty()) return found;
  const std::string config = io::join(path, kConfigFile);
  if (io::is_file(config) && io::file_size(config) == 0)
    throw input_error({config, {}}, "is empty: incomplete save")
        .with_hint(container.hint);
  if (io::is_directory(path) && !container.unfinished(path).empty())
    throw input_error({path, {}}, "has no {}: incomplete save", kConfigFile)
        .with_hint(container.hint);
  throw missing_error(
      {path, {}}, "is not a distributed checkpoint of Megatron: {}", found.why);
}

// Checks that the backend and its version are known.
void check_config(const DistFound& found, const DistContainer& container,
                  Catalog& catalog) {
  const Config& config = found.config;
  const std::string path = io::join(found.path, kConfigFile);
  const Strategy& strategy =
      find_strategy(Action::kLoadSharded, config.sharded_backend,
                    config.sharded_version, path);
  if (strategy.format != container.format)
    throw usage_error({path, {}}, "says that this is {}, not {}",
                      config.sharded_backend, container.backend)
        .with_hint(fmt::format("read it with --from {}", strategy.format));
  if (!config.common_backend.empty())
    find_strategy(Action::kLoadCommon, config.common_backend,
                  config.common_version, path);
  catalog.version = std::to_string(config.sharded_version);
  for (const std::string& field : config.unknown)
    catalog.problems.push_back(remark("unknown_field", {path, {}},
                                      "{} is not known, and ignored",
                                      text::printable(field)));
}

}  // namespace

Catalog open_dist_catalog(const std::string& path,
                          const DistContainer& container,
                          const formats::ReadOptions& options) {
  const DistFound found = locate_or_throw(path, container);
  Catalog catalog;
  catalog.format = container.format;
  catalog.path = found.path;
  catalog.root = found.root;
  catalog.family = options.family;
  if (!found.chosen.empty()) catalog.assumptions.push_back(found.chosen);
  if (!found.warning.empty())
    catalog.problems.push_back(
        warning("tracker", {found.root, {}}, "{}", found.warning));
  check_config(found, container, catalog);
  return catalog;
}

std::optional<uint64_t> writer_rank(std::string_view name) {
  if (!name.ends_with(".distcp")) return std::nullopt;
  const size_t at = name.rfind("__");
  if (at == name.npos) return std::nullopt;
  std::string_view rest = name.substr(at + 2);
  const auto rank = text::take_number(rest);
  return rest.starts_with('_') ? rank : std::nullopt;
}

void warn_of_old_names(Catalog& catalog) {
  // A language model beside towers keeps "language_model.embedding".
  const auto is_old = [](const Tensor& tensor) {
    const std::string core = core_name(tensor.name);
    return core != tensor.name && core.starts_with("decoder.");
  };
  const auto count = std::ranges::count_if(catalog.tensors, is_old);
  const bool said = std::ranges::find(catalog.problems, "foreign_names",
                                      &Problem::kind) != catalog.problems.end();
  if (count == 0 || said) return;
  catalog.problems.push_back(warning(
      "foreign_names", {catalog.path, {}},
      "{} tensors have the names of Megatron-LM's own modules ({}): "
      "Megatron-Core will not find them; --to safetensors makes a model of "
      "transformers, which converts to Megatron-Core's",
      count, std::ranges::find_if(catalog.tensors, is_old)->name));
}

void finish_dist_catalog(Catalog& catalog, const Common& common) {
  check_grids(catalog);
  add_common_objects(common, catalog);
  catalog.dialect = "mcore";
  const KeyList keys = keys_of(catalog.tensors);
  for (size_t i = 0; i < keys.size(); ++i)
    classify(catalog.tensors[i], keys[i]);
  Facts facts = facts_of(catalog);
  infer_facts(catalog.tensors, keys, facts);
  for (size_t i = 0; i < keys.size(); ++i)
    catalog.tensors[i].tp = rule_of(catalog.tensors[i], keys[i], facts);
  set_topology(catalog, facts);
  view_buckets(catalog, facts);
  warn_of_old_names(catalog);
}

}  // namespace ckpt::megatron
