// SPDX-License-Identifier: Apache-2.0
// The question about several models in one tree: each by itself.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "convert/whole.h"
#include "formats/component_tree.h"
#include "formats/options.h"
#include "lib/io/file.h"

namespace ckpt::families {
namespace {

// The folder of one of a pipeline's models as its loader opens it.
Catalog folder_of(size_t at, const Catalog& source) {
  const std::vector<Component>& all = source.run->components;
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
  for (const Sidecar& sidecar : source.sidecars)
    if (sidecar.name.starts_with(place)) {
      folder.sidecars.push_back(sidecar);
      folder.sidecars.back().name.erase(0, place.size());
    }
  return folder;
}

}  // namespace

Whole check_whole(const Catalog& source, const TranslateOptions& options) {
  if (!source.run || source.run->components.empty())
    return check_model(source, options);
  const std::vector<Component>& all = source.run->components;
  Whole whole{.basis = Whole::Basis::kRules};
  for (size_t at = 0; at < all.size(); ++at) {
    Whole one = check_model(folder_of(at, source), options);
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
