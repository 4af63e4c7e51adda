// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/components.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/file_names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::runs {
namespace {

using Json = nlohmann::json;
using text::printable;

struct Component {
  std::string folder;
  std::string kind;  // "diffusers.UNet2DModel"
};

// A list in a file may name any path; only folders below it are components.
bool is_below_step(std::string_view path) {
  return !path.starts_with('/') && path.find("..") == path.npos &&
         path.find('\\') == path.npos && path.find('\0') == path.npos;
}

void add_component(const std::string& list, std::string folder,
                   std::string kind, std::vector<Component>& found) {
  if (!is_below_step(folder))
    throw input_error({list, {}}, "names a component \"{}\" outside of it",
                      printable(folder));
  found.push_back({std::move(folder), std::move(kind)});
}

// [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
// or {"unet": ["diffusers", "UNet2DModel"], "safety_checker": [null, null]}
std::vector<Component> listed(const Trainer& trainer,
                              const std::string& folder) {
  std::vector<Component> found;
  const std::string path = io::join(folder, trainer.components.file);
  if (!io::is_file(path)) return found;
  constexpr uint64_t kMaxList = 1 << 20;
  const Json json = text::parse_json(io::read_file(path, kMaxList), path);
  if (json.is_array()) {
    for (const Json& one : json)
      if (one.is_object() && one.contains("path") && one["path"].is_string() &&
          one.contains("type") && one["type"].is_string())
        add_component(path, one["path"], one["type"], found);
  } else if (json.is_object()) {
    for (const auto& [name, value] : json.items())
      if (value.is_array() && value.size() == 2 && value[0].is_string() &&
          value[1].is_string())
        add_component(
            path, name,
            value[0].get<std::string>() + "." + value[1].get<std::string>(),
            found);
  }
  return found;
}

bool has_component_weights(const Trainer& trainer, const std::string& folder) {
  return std::ranges::any_of(trainer.models, [&](const Source& source) {
    return !names_like(folder, source.file).empty();
  });
}

std::string place_of_component(const std::string& folder,
                               const Component& one) {
  return one.folder.empty() ? folder : io::join(folder, one.folder);
}

// Why it is not whole; empty if it is.
std::string component_lack(const Trainer& trainer, const std::string& place,
                           const Component& one) {
  const auto& weighted = trainer.components.weighted;
  const bool known = std::ranges::any_of(weighted, [&](const std::string& end) {
    return one.kind.ends_with(end);
  });
  if (!io::is_directory(place)) {
    // The folders of modules with nothing to keep are empty, and get lost.
    return weighted.empty() || known ? "its folder is missing" : "";
  }
  if (has_component_weights(trainer, place)) return {};
  const bool configured = io::is_file(io::join(place, "config.json"));
  return known || (weighted.empty() && configured) ? "there are no weights"
                                                   : "";
}

}  // namespace

std::vector<std::string> component_folders(const Trainer& trainer,
                                           const std::string& folder) {
  std::vector<std::string> found;
  if (trainer.components.file.empty()) return found;
  for (const Component& one : listed(trainer, folder)) {
    const std::string place = place_of_component(folder, one);
    if (io::is_directory(place) && has_component_weights(trainer, place) &&
        std::ranges::find(found, one.folder) == found.end())
      found.push_back(one.folder);
  }
  return found;
}

void check_components(const Trainer& trainer, const std::string& folder,
                      Catalog& catalog) {
  if (trainer.components.file.empty()) return;
  for (const Component& one : listed(trainer, folder)) {
    const std::string place = place_of_component(folder, one);
    const std::string lack = component_lack(trainer, place, one);
    if (lack.empty()) continue;
    catalog.problems.push_back(
        damage("missing_part", {place, {}}, "{} lists {} here, and {}",
               printable(trainer.components.file), printable(one.kind), lack));
  }
}

}  // namespace ckpt::runs
