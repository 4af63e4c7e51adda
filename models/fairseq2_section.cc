// SPDX-License-Identifier: Apache-2.0
#include "models/fairseq2_section.h"

#include <algorithm>

#include "lib/embedded.h"
#include "models/own.h"

namespace ckpt::families {
namespace {

using Json = nlohmann::json;

// Not parsed as a Family: a reader of shards needs only this part.
Json section_of(const Embedded& file) {
  const Json json = Json::parse(file.text);
  const auto dialects = json.find("dialects");
  if (dialects == json.end() || !dialects->contains("fairseq2")) return {};
  Json section = dialects->at("fairseq2");
  section.emplace("family", file.name);
  return section;
}

bool has_rules(const Embedded& file) {
  return file.text.find("\"tp_rules\"") != file.text.npos;
}

Json find_rules(std::string_view name) {
  for (const Embedded& file : files()) {
    if (!has_rules(file)) continue;
    Json section = section_of(file);
    if (section.contains("tp_rules") && section.at("family") == name)
      return section;
  }
  return {};
}

// True if the file has that model_type of transformers; olmo3 is in olmo2's.
bool has_type(const Embedded& file, std::string_view type) {
  if (file.text.find(type) == file.text.npos) return false;
  const Json json = Json::parse(file.text);
  const Json types =
      json.value(Json::json_pointer("/hf/model_type"), Json::array());
  return std::ranges::count(types, Json(type)) != 0;
}

// The section of the file with that name, or with that model_type.
Json own_section(std::string_view family) {
  for (const Embedded& file : files())
    if (file.name == family) return section_of(file);
  for (const Embedded& file : files()) {
    if (!has_type(file, family)) continue;
    if (Json section = section_of(file); !section.is_null()) return section;
  }
  return {};
}

}  // namespace

Json fairseq2_section(std::string_view family) {
  const Json own = own_section(family);
  // Most files have the same name as in fairseq2.
  if (own.contains("tp_rules") && own.at("family") == family) return own;
  if (Json section = find_rules(family); !section.is_null()) return section;
  if (own.is_null() || own.contains("tp_rules")) return own;
  return find_rules(own.at("family").get_ref<const std::string&>());
}

std::vector<std::string> fairseq2_families() {
  std::vector<std::string> names;
  for (const Embedded& file : files())
    if (has_rules(file))
      names.push_back(section_of(file).at("family").get<std::string>());
  std::ranges::sort(names);
  return names;
}

}  // namespace ckpt::families
