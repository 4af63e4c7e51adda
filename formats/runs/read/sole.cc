// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/sole.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "formats/dcp/objects.h"
#include "formats/megatron/dist/catalog.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/merge.h"
#include "formats/runs/read/step.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::runs {
namespace {

using formats::ReadOptions;
using text::printable;

bool has_model(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::model;
  });
}

// Reads a folder, or one of its roles.
class SoleReading {
 public:
  SoleReading(const Trainer& trainer, std::string folder,
              const ReadOptions& options)
      : trainer_(trainer),
        sole_(trainer.sole),
        folder_(std::move(folder)),
        options_(options) {}

  Catalog read() {
    contents_ = listed();
    const std::vector<std::string> containers = find_containers();
    Catalog catalog = containers.empty() ? weights() : read_parts(containers);
    check_listed(catalog);
    return catalog;
  }

 private:
  Catalog read_parts(const std::vector<std::string>& containers) const {
    Catalog catalog = read_containers(containers);
    if (!sole_.weights.empty() && !has_model(catalog))
      return under_weights(std::move(catalog));
    add_home(catalog);
    note_copy(catalog);
    return catalog;
  }

  // What verl says it saved: {"contents": {"optimizer": {"path": …}, …}}.
  nlohmann::json listed() const {
    constexpr uint64_t kMost = 1 << 20;
    const std::string path = io::join(folder_, sole_.list);
    if (sole_.list.empty() || !io::is_file(path))
      return nlohmann::json::object();
    const nlohmann::json json =
        text::parse_python_json(io::read_file(path, kMost), path);
    const auto found = json.find("contents");
    return found != json.end() && found->is_object() ? *found
                                                     : nlohmann::json::object();
  }

  void check_listed(Catalog& catalog) const {
    for (const auto& [what, entry] : contents_.items()) {
      const auto path = entry.is_object() ? entry.find("path") : entry.end();
      if (!entry.is_object() || path == entry.end() || !path->is_string())
        continue;
      const std::string at = *path;
      const bool known = at == sole_.at || at == sole_.weights ||
                         std::ranges::find(sole_.more, at, &Sole::More::at) !=
                             sole_.more.end();
      const std::string folder = io::join(folder_, at);
      if (!known ||
          (io::is_directory(folder) && !io::list_directory(folder).empty()))
        continue;
      catalog.problems.push_back(
          damage("missing_part", {folder, {}},
                 "is missing or empty; {} lists it as the place of {}",
                 sole_.list, printable(what)));
    }
  }

  std::vector<std::string> find_containers() const {
    std::vector<std::string> found;
    // The format's reader reports what a container lacks.
    const auto names = names_like(folder_, sole_.at + "/");
    if (sole_.at.empty())
      found.push_back(folder_);
    else if (!names.empty())
      found.push_back(io::join(folder_, names.back().path));
    for (const Sole::More& one : sole_.more)
      if (const std::string path = io::join(folder_, one.at);
          io::is_directory(path) && !io::list_directory(path).empty())
        found.push_back(path);
    return found;
  }

  Catalog read_containers(const std::vector<std::string>& containers) const {
    if (!sole_.more.empty())
      return megatron::read_dist_parts(folder_, containers, options_);
    return formats::find_format(sole_.format)
        .reader->read_catalog(containers[0], options_);
  }

  Catalog weights() const {
    const std::string path = io::join(folder_, sole_.weights);
    if (sole_.weights.empty() || !io::is_directory(path))
      throw input_error({folder_, {}}, "is a step of {} without a model",
                        trainer_.what)
          .with_hint(fmt::format("{} is missing", sole_.at));
    return formats::find_format("safetensors")
        .reader->read_catalog(path, options_);
  }

  // The weights are transformers', the optimizer is in the format's own
  // arrangement; nothing here says which is which.
  Catalog under_weights(Catalog state) const {
    Catalog catalog = weights();
    catalog.path = folder_;
    for (Tensor& tensor : state.tensors) {
      tensor.kind = tensor.kind == Kind::model ? Kind::other : tensor.kind;
      tensor.param.clear();
      if (!tensor.name.starts_with("optimizer."))
        tensor.name.insert(0, "optimizer.");
    }
    state.problems.push_back(warning(
        "numbered_state", {state.path, {}},
        "the optimizer keeps the names and the arrangement of {}, since the "
        "weights beside it have those of transformers",
        sole_.format));
    const auto opener = state.object_opener;
    auto skeleton = std::exchange(state.skeleton, std::nullopt);
    catalog.topology = state.topology;
    Merger(catalog).add(std::move(state));
    if (skeleton) catalog.skeleton = std::move(skeleton);
    if (opener) catalog.object_opener = opener;
    return catalog;
  }

  void note_copy(Catalog& catalog) const {
    if (sole_.weights.empty()) return;
    const std::string path = io::join(folder_, sole_.weights);
    for (const char* name :
         {"model.safetensors", "model.safetensors.index.json"})
      if (io::is_file(io::join(path, name)))
        catalog.problems.push_back(
            contents_.contains("peft_adapters")
                ? warning("second_copy", {io::join(path, name), {}},
                          "holds the model that the adapter in {} is of; the "
                          "adapter is read",
                          sole_.at)
                : remark("second_copy", {io::join(path, name), {}},
                         "holds the same model again; that of {} is read",
                         sole_.at));
  }

  // Adds the transformers model's configuration and tokenizer.
  void add_home(Catalog& catalog) const {
    for (const std::string& home : trainer_.homes) {
      const std::string path = io::join(folder_, home);
      if (!io::is_directory(path) || io::list_directory(path).empty())
        note_lost(home, path, catalog);
      if (!io::is_directory(path)) continue;
      formats::add_sidecars(path, catalog);
      if (!catalog.family.empty()) continue;
      catalog.family = facts_of(path).type;
      if (!catalog.family.empty())
        catalog.assumptions.push_back(
            fmt::format("family {}: model_type in {}/config.json",
                        printable(catalog.family), home));
    }
  }

  // Steps by whose folder the trainer is known, unless their name says it.
  void note_lost(const std::string& home, const std::string& path,
                 Catalog& catalog) const {
    if (std::ranges::any_of(trainer_.signature, [&](const std::string& sign) {
          return sign.starts_with(home + "/|");
        }))
      catalog.problems.push_back(
          warning("missing_part", {path, {}},
                  "is missing or empty: {} saves the model's configuration "
                  "there, which its exporters ask for",
                  trainer_.what));
  }

  const Trainer& trainer_;
  const Sole& sole_;
  const std::string folder_;
  nlohmann::json contents_;
  const ReadOptions& options_;
};

}  // namespace

Catalog read_sole(const Found& found, const ReadOptions& options) {
  const auto read = [&](const std::string& folder) {
    return SoleReading(*found.trainer, folder, options).read();
  };
  if (found.roles.empty()) return read(found.step);
  if (found.roles.size() == 1)
    return read(io::join(found.step, found.roles[0]));
  Catalog all;
  all.path = found.step;
  // dcp writes names as they are; no format's own writer takes two models.
  all.format = "dcp";
  for (const std::string& role : found.roles) {
    Catalog one = read(io::join(found.step, role));
    for (Tensor& tensor : one.tensors) {
      tensor.name = role + "." + tensor.name;
      if (!tensor.param.empty()) tensor.param = role + "." + tensor.param;
    }
    for (Object& object : one.objects) object.name = role + "." + object.name;
    all.topology.tp = std::max(all.topology.tp, one.topology.tp);
    all.topology.pp = std::max(all.topology.pp, one.topology.pp);
    all.topology.dp = std::max(all.topology.dp, one.topology.dp);
    all.topology.ep = std::max(all.topology.ep, one.topology.ep);
    Merger(all).add(std::move(one));
  }
  all.object_opener = dcp::object_opener(options.restrict_globals);
  return all;
}

}  // namespace ckpt::runs
