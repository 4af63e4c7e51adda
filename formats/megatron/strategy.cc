// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/strategy.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::megatron {
namespace {

constexpr uint64_t kMostConfig = 1 << 20;

std::vector<Strategy>& all_strategies() {
  static std::vector<Strategy> all{
      {Action::kLoadSharded, "torch_dist", 1, "megatron_torch_dist"},
      {Action::kLoadSharded, "zarr", 1, "megatron_zarr"},
      {Action::kSaveSharded, "torch_dist", 1, "megatron_torch_dist"},
      {Action::kSaveSharded, "zarr", 1, "megatron_zarr"},
      {Action::kLoadCommon, "torch", 1, ""},
      {Action::kSaveCommon, "torch", 1, ""},
  };
  return all;
}

// Older cores write null for a missing version.
uint64_t version_of(const nlohmann::json& root, const std::string& key,
                    const std::string& path) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return 1;
  return text::uint_member(root, key, path);
}

}  // namespace

std::string_view name(Action action) {
  switch (action) {
    case Action::kLoadSharded:
      return "load_sharded";
    case Action::kSaveSharded:
      return "save_sharded";
    case Action::kLoadCommon:
      return "load_common";
    case Action::kSaveCommon:
      return "save_common";
  }
  return "";
}

const std::vector<Strategy>& strategies() { return all_strategies(); }

bool add_strategy(Strategy strategy) {
  if (look_up(strategy.action, strategy.backend, strategy.version))
    return false;
  all_strategies().push_back(std::move(strategy));
  return true;
}

const Strategy* look_up(Action action, std::string_view backend,
                        uint64_t version) {
  for (const Strategy& strategy : strategies())
    if (strategy.action == action && strategy.backend == backend &&
        strategy.version == version)
      return &strategy;
  return nullptr;
}

std::string supported(Action action) {
  std::string all;
  for (const Strategy& strategy : strategies())
    if (strategy.action == action)
      all += fmt::format("{}{} {}", all.empty() ? "" : ", ",
                         text::printable(strategy.backend), strategy.version);
  return all;
}

std::optional<Config> read_config(const std::string& directory) {
  const std::string path = io::join(directory, kConfigFile);
  if (!io::is_file(path)) return std::nullopt;
  const std::string text = io::read_file(path, kMostConfig);
  // OLMo and others have a metadata.json, too, but without this word.
  if (text.find("sharded_backend") == text.npos) return std::nullopt;
  const nlohmann::json root = text::parse_python_json(text, path);
  const auto backend = root.find("sharded_backend");
  if (!root.is_object() || backend == root.end()) return std::nullopt;

  Config config;
  config.sharded_backend = text::string_member(root, "sharded_backend", path);
  config.sharded_version = version_of(root, "sharded_backend_version", path);
  if (const auto common = root.find("common_backend");
      common != root.end() && !common->is_null())
    config.common_backend = text::string_member(root, "common_backend", path);
  config.common_version = version_of(root, "common_backend_version", path);
  for (const auto& [key, value] : root.items())
    if (key != "sharded_backend" && key != "sharded_backend_version" &&
        key != "common_backend" && key != "common_backend_version")
      config.unknown.push_back(key);
  return config;
}

const Strategy& find_strategy(Action action, std::string_view backend,
                              uint64_t version, const std::string& path) {
  if (const Strategy* found = look_up(action, backend, version)) return *found;
  throw input_error({path, {}}, "no way to {} with backend '{}' version {}",
                    name(action), text::printable(backend), version)
      .with_hint("supported are " + supported(action));
}

std::string config_text(std::string_view sharded_backend) {
  return fmt::format(
      "{{\"sharded_backend\": \"{}\", \"sharded_backend_version\": 1, "
      "\"common_backend\": \"torch\", \"common_backend_version\": 1}}",
      sharded_backend);
}

}  // namespace ckpt::megatron
