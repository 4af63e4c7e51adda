// SPDX-License-Identifier: Apache-2.0
// Megatron-FSDP's checkpoints (--ckpt-format fsdp_dtensor): a directory of DCP
// with the names of modules, no metadata.json and no common.pt.
//
//   model.module.decoder.layers.3.mlp.linear_fc1.weight_w      gate
//   model.module.decoder.layers.3.mlp.linear_fc1.weight_v      up
//   optimizer.state.module.module.module.<param>.exp_avg
//   optimizer.param_to_group_meta.module.module.module.<param>.lr
//   args iteration checkpoint_version opt_param_scheduler.… rng_state.(0, 0)
//
//     ─► decoder.layers.3.mlp.linear_fc1.weight,
//        optimizer.state.exp_avg.<param>
//
// Boxes are runs of rows of different heights: ranks share flat buffers. Layers
// are numbered within their pipeline stage (Megatron's state_dict is the
// module's own), so stages save different layers under one name, and DCP keeps
// one of them: such a checkpoint lost layers when it was written.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
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

constexpr std::string_view kIndexName = ".metadata";
constexpr std::string_view kModelPrefix = "model.module.";
constexpr std::string_view kOptions = "optimizer.param_to_group_meta.";
constexpr std::string_view kOptimizer = "optimizer.";
// The index names what it holds at its ends: values, then the model.
constexpr uint64_t kLooked = uint64_t{1} << 20;

bool holds(const std::string& text, std::string_view word) {
  return text.find(word) != text.npos;
}

// True for an index with names that no other trainer uses.
bool is_fsdp_directory(const std::string& path) {
  const std::string index = io::join(path, kIndexName);
  if (!io::is_file(index) || io::is_file(io::join(path, kConfigFile)))
    return false;
  const io::Handle file = io::Handle::open_read(index);
  const uint64_t part = std::min(file.size(), kLooked);
  for (const uint64_t at : {uint64_t{0}, file.size() - part}) {
    const std::string text = file.read_string(at, part);
    if (holds(text, kModelPrefix) &&
        (holds(text, "checkpoint_version") || holds(text, kOptions)))
      return true;
  }
  return false;
}

struct FsdpFound {
  std::string path;    // "" if there is none
  std::string chosen;  // the iteration, if a training root was given
};

FsdpFound locate_fsdp(const std::string& path) {
  if (!io::is_directory(path)) return {};
  if (is_fsdp_directory(path)) return {path, {}};
  const std::string tracker = io::join(path, kTracker);
  if (!io::is_file(tracker)) return {};
  std::string word = io::read_file(tracker, 4096);
  word.erase(word.find_last_not_of(" \t\r\n") + 1);
  const auto named = iteration_directory(word);
  if (!named) return {};
  const std::string below = io::join(path, *named);
  return is_fsdp_directory(below) ? FsdpFound{below, *named} : FsdpFound{};
}

// The "layers.0.w" of "module.module.layers.0.w".
std::string_view without_modules(std::string_view name) {
  constexpr std::string_view kModule = "module.";
  while (name.starts_with(kModule)) name.remove_prefix(kModule.size());
  return name;
}

// The name without "0." in "0.state.…", which one of several optimizers has.
std::string_view without_number(std::string_view name) {
  const size_t digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != name.npos && name[digits] == '.'
             ? name.substr(digits + 1)
             : name;
}

// "….experts.experts.7.linear_fc1.weight_w" of
// "….experts.linear_fc1.weight7_w".
std::string parameter_key(std::string_view name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  const size_t at = name.find(std::string(kExperts) + "linear_fc");
  const std::string_view half = name.ends_with("_w") || name.ends_with("_v")
                                    ? name.substr(name.size() - 2)
                                    : std::string_view();
  const std::string_view whole = name.substr(0, name.size() - half.size());
  const size_t end = whole.find_last_not_of("0123456789") + 1;
  if (at == name.npos || end == whole.size()) return std::string(name);
  const size_t module = at + kExperts.size();
  return fmt::format("{}experts.{}.{}{}", name.substr(0, module),
                     whole.substr(end), whole.substr(module, end - module),
                     half);
}

// The sharded key that such a name stands for.
std::string key_of(std::string_view name) {
  if (name.starts_with(kModelPrefix))
    return parameter_key(without_modules(name.substr(6)));
  if (!name.starts_with(kOptimizer)) return std::string(name);
  constexpr std::string_view kState = "state.";
  const std::string_view rest = without_number(name.substr(kOptimizer.size()));
  const size_t dot = rest.rfind('.');
  if (!rest.starts_with(kState) || dot < kState.size())
    return std::string(name);
  return fmt::format("optimizer.state.{}.{}", rest.substr(dot + 1),
                     parameter_key(without_modules(
                         rest.substr(kState.size(), dot - kState.size()))));
}

void rename_keys(Catalog& catalog) {
  std::set<std::string> seen;
  for (Tensor& tensor : catalog.tensors) {
    std::string key = key_of(tensor.name);
    if (!seen.insert(key).second)
      throw input_error({catalog.path, tensor.name},
                        "stands for {}, as another tensor does", key);
    tensor.name = std::move(key);
  }
}

// The args are needed now; the other values can wait.
void open_args(Catalog& catalog) {
  const auto args =
      std::ranges::find(catalog.objects, std::string(kArgs), &Object::name);
  if (args == catalog.objects.end()) return;
  Catalog alone;
  alone.path = catalog.path;
  alone.files = catalog.files;
  alone.objects = {*args};
  alone.object_opener = catalog.object_opener;
  load_objects(alone);
  *args = alone.objects.at(0);
  for (const std::string& global : alone.globals)
    if (std::ranges::find(catalog.globals, global) == catalog.globals.end())
      catalog.globals.push_back(global);
  std::ranges::sort(catalog.globals);
}

void check_stages(Catalog& catalog) {
  const Facts facts = facts_of(catalog);
  if (facts.pp.value_or(1) <= 1 || !facts.num_layers) return;
  std::set<uint64_t> layers;
  for (const Tensor& tensor : catalog.tensors) {
    const Key key = parse_key(tensor.name);
    if (key.layer && key.state.empty() && key.name.starts_with("decoder."))
      layers.insert(*key.layer);
  }
  if (layers.size() >= *facts.num_layers) return;
  catalog.problems.push_back(
      damage("lost_layers", {catalog.path, {}},
             "names {} of the model's {} layers: its {} pipeline stages "
             "numbered theirs from 0 each, and of layers with one name "
             "Megatron-FSDP stored one; the others are lost",
             layers.size(), *facts.num_layers, *facts.pp));
}

Support supports_fsdp(const std::string& path) {
  const FsdpFound found = locate_fsdp(path);
  if (found.path.empty())
    return {false, "no .metadata with the names of Megatron-FSDP"};
  return {true, "names of Megatron-FSDP in .metadata"};
}

Catalog read_catalog_fsdp(const std::string& path, const ReadOptions& options) {
  const FsdpFound found = locate_fsdp(path);
  if (found.path.empty())
    throw missing_error({path, {}},
                        "is not a checkpoint of Megatron-FSDP: no .metadata "
                        "with its names (model.module.…)");
  Catalog catalog;
  catalog.format = "megatron_fsdp_dtensor";
  catalog.path = found.path;
  catalog.family = options.family;
  if (!found.chosen.empty()) {
    catalog.root = path;
    catalog.assumptions.push_back(
        fmt::format("{}: {}", found.chosen, kTracker));
  }
  dcp::Metadata metadata =
      dcp::read_metadata(io::join(found.path, kIndexName), options);
  dcp::check_cover(metadata);
  catalog.version = metadata.version;
  dcp::add_to_catalog(metadata, catalog, options);
  rename_keys(catalog);
  open_args(catalog);
  finish_dist_catalog(catalog, {});
  check_stages(catalog);
  add_strays(found.path, catalog);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_fsdp_reader() {
  return formats::reader_of("megatron_fsdp_dtensor", supports_fsdp,
                            read_catalog_fsdp);
}

}  // namespace ckpt::megatron
