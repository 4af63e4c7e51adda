// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/config.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt::olmo_core {
namespace {

using nlohmann::json;

constexpr uint64_t kMostConfig = uint64_t{16} << 20;

// A member that may be absent or null.
const json& at(const json& object, const char* key) {
  static const json nothing;
  if (!object.is_object()) return nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

std::string text(const json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Layers with other blocks are one family if only their rope's scaling differs.
bool are_alike(const json& block, const json& overrides) {
  const auto plain = [](json one) {
    for (const char* name : {"sequence_mixer", "attention"})
      if (at(at(one, name), "rope").is_object())
        one[name]["rope"].erase("scaling");
    return one;
  };
  if (!overrides.is_object()) return true;
  for (const auto& item : overrides.items())
    if (plain(item.value()) != plain(block)) return false;
  return true;
}

// The names are those of the Hugging Face models to which OLMo-core itself maps
// such blocks.
std::string family_of(const json& model) {
  const json& block = at(model, "block");
  if (!are_alike(block, at(model, "block_overrides"))) return {};
  const json& mixer = at(block, "sequence_mixer").is_object()
                          ? at(block, "sequence_mixer")
                          : at(block, "attention");
  if (!mixer.is_object()) return {};
  const std::string name = text(at(block, "name"));
  const bool normed = at(mixer, "qk_norm").is_object();
  const bool heads = at(mixer, "use_head_qk_norm") == json(true);
  const bool windows = at(mixer, "sliding_window").is_object();
  if (name.empty() || name == "default") {
    if (!normed) return "llama";
    return heads ? "qwen3" : "";
  }
  if (name == "reordered_norm" && normed && !heads)
    return windows ? "olmo3" : "olmo2";
  if (name == "moe_reordered_norm" && normed && !heads) return "flex_olmo";
  if (name == "peri_norm" && normed && heads) return "gemma3_text";
  return {};
}

}  // namespace

void read_family(const std::string& path, Catalog& catalog) {
  if (!catalog.family.empty() || !io::is_file(path)) return;
  try {
    const json config =
        text::parse_python_json(io::read_file(path, kMostConfig), path);
    catalog.family = family_of(at(config, "model"));
  } catch (const Error& error) {
    catalog.problems.push_back(warning("config", {path, {}}, "{}{}",
                                       std::string("is not read: "),
                                       error.problem()));
    return;
  }
  if (!catalog.family.empty())
    catalog.assumptions.push_back(
        fmt::format("family {}: the block in config.json", catalog.family));
}

}  // namespace ckpt::olmo_core
