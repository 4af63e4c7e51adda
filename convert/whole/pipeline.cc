// SPDX-License-Identifier: Apache-2.0
// The question about several models in one tree, or step: each by itself.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "containers/hf/hf.h"
#include "convert/whole/models_of.h"
#include "convert/whole/whole.h"
#include "formats/component_tree.h"
#include "formats/options.h"
#include "lib/io/file.h"

namespace ckpt::families {
namespace {

// The first folder with a config.json: `folder`, or one up to two below it.
std::optional<std::string> configured(const std::string& step,
                                      const std::string& folder, int depth) {
  const std::string path = io::join(step, folder);
  if (!io::is_directory(path)) return std::nullopt;
  if (io::is_file(io::join(path, "config.json"))) return folder;
  if (depth == 0) return std::nullopt;
  for (const std::string& name : io::list_directory(path))
    if (auto found = configured(step, io::join(folder, name), depth - 1))
      return found;
  return std::nullopt;
}

// The folder of one of the models as its loader opens it.
Catalog folder_of(size_t at, const std::vector<Component>& all,
                  const Catalog& source) {
  const std::string place = all[at].folder.empty() ? "" : all[at].folder + "/";
  Catalog folder;
  folder.path = io::join(source.path, all[at].folder);
  folder.files = source.files;
  for (const Tensor& tensor : source.tensors) {
    if (formats::component_of(all, tensor.name) != at) continue;
    folder.tensors.push_back(tensor);
    folder.tensors.back().name.erase(0, all[at].prefix.size());
  }
  if (!folder.tensors.empty() && !folder.tensors.front().pieces.empty())
    folder.format = formats::format_of_name(
        source.files[folder.tensors.front().pieces.front().extent.file].path);
  if (source.run->components.empty()) {
    folder.format = source.format;
    folder.run = source.run;
    folder.run->models.clear();
    // A folder of several models: whose its configuration is, nobody knows.
    if (!all[at].folder.empty()) formats::add_sidecars(folder.path, folder);
    return folder;
  }
  for (const Sidecar& sidecar : source.sidecars)
    if (sidecar.name.starts_with(place)) {
      folder.sidecars.push_back(sidecar);
      folder.sidecars.back().name.erase(0, place.size());
    }
  return folder;
}

}  // namespace

std::string word_of(const Component& model) {
  return model.prefix.empty() ? "."
                              : model.prefix.substr(0, model.prefix.size() - 1);
}

std::vector<Component> models_of(const Catalog& source) {
  if (!source.run) return {};
  if (!source.run->components.empty()) return source.run->components;
  std::vector<Component> models;
  for (const std::string& prefix : source.run->models) {
    const std::string role = prefix.substr(0, prefix.find('.'));
    Component& model = models.emplace_back(Component{prefix, {}});
    for (const std::string& own : {role, "_" + role})
      if (model.folder.empty() && io::is_directory(io::join(source.path, own)))
        model.folder = configured(source.path, own, 2).value_or(own);
  }
  return models;
}

Whole check_whole(const Catalog& source, const TranslateOptions& options) {
  std::vector<Component> all = models_of(source);
  if (all.empty()) return check_model(source, options);
  // The first of several in one folder may have no word before its names.
  if (source.run->components.empty()) all.push_back({});
  Whole whole{.basis = Whole::Basis::kRules};
  for (size_t at = 0; at < all.size(); ++at) {
    Whole one = check_model(folder_of(at, all, source), options);
    for (Problem& problem : one.problems) {
      if (!problem.tensor.empty()) problem.tensor.insert(0, all[at].prefix);
      whole.problems.push_back(std::move(problem));
    }
    whole.basis = std::min(whole.basis, one.basis);
    if (whole.open.empty() && !one.open.empty())
      whole.open = all[at].folder.empty()
                       ? one.open
                       : fmt::format("{}: {}", all[at].folder, one.open);
  }
  return whole;
}

}  // namespace ckpt::families
