// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/models/titan_config.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"

namespace ckpt::runs::titan {
namespace {

using text::printable;

constexpr uint64_t kMaxConfig = 64 << 20;
constexpr uint64_t kMostHidden = 100'000;

class Reading {
 public:
  Reading(Catalog& source, const std::string& path, const nlohmann::json& json)
      : source_(source), path_(path), json_(json) {}

  Config run() {
    const std::string type = word("model_type");
    Config config{.model = find_model(type)};
    if (config.model == nullptr)
      throw unfaithful_error(
          {path_, {}},
          "model_type {}: between torchtitan's names and those of "
          "transformers, {} are known",
          printable(type), known_models())
          .with_hint("lightning and accelerate keep names as they are");
    config.queries = number("num_attention_heads");
    config.keys = number("num_key_value_heads");
    if (config.keys == 0) config.keys = config.queries;
    if (config.keys == 0 || config.queries % config.keys != 0)
      throw unfaithful_error({path_, {}}, "{} heads of queries and {} of keys",
                             config.queries, config.keys);
    config.layers = number("num_hidden_layers");
    if (config.layers == 0 || config.layers > kMostHidden)
      throw unfaithful_error({path_, {}}, "num_hidden_layers: {}",
                             config.layers);
    for (const char* key :
         {"num_experts", "n_routed_experts", "num_local_experts"})
      if (config.experts == 0) config.experts = number(key);
    config.tied = flag("tie_word_embeddings", false);
    compare(type);
    return config;
  }

 private:
  const nlohmann::json* value(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  uint64_t number(const char* key) const {
    const nlohmann::json* found = value(key);
    return found && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  }
  bool flag(const char* key, bool otherwise) const {
    const nlohmann::json* found = value(key);
    return found && found->is_boolean() ? found->get<bool>() : otherwise;
  }
  std::string word(const char* key) const {
    const nlohmann::json* found = value(key);
    return found && found->is_string() ? found->get<std::string>() : "";
  }

  void warn(const std::string& text) {
    source_.problems.push_back(warning("config", {path_, {}}, "{}", text));
  }

  // A step does not say how torchtitan's model was configured, so the numbers
  // are config.json's. Those that its own configurations fix are compared.
  void compare(const std::string& type) {
    if (type == "qwen3_moe" && !flag("norm_topk_prob", false))
      warn(
          "norm_topk_prob is not true, and torchtitan's qwen3 normalizes the "
          "scores of the experts that it takes: give both the same");
    if (type == "deepseek_v3" || type == "deepseek_v2")
      compare_scores(type == "deepseek_v3" ? "sigmoid" : "softmax");
  }

  void compare_scores(std::string_view scores) {
    const std::string said = word("scoring_func");
    if (!said.empty() && said != scores)
      warn(fmt::format(
          "scoring_func is {}, and transformers' {} scores experts by {}",
          printable(said), word("model_type"), scores));
    source_.assumptions.push_back(fmt::format(
        "torchtitan: experts' scores by {}, as transformers' {}; of its own "
        "configurations 671B has sigmoid, the others softmax",
        scores, word("model_type")));
  }

  Catalog& source_;
  const std::string& path_;
  const nlohmann::json& json_;
};

}  // namespace

Config config_of(Catalog& source) {
  constexpr const char* kName = "config.json";
  const auto read = [&](const std::string& path, const std::string& text) {
    const auto json = text::parse_or_discard(text);
    return json.is_object() ? std::optional(Reading(source, path, json).run())
                            : std::nullopt;
  };
  for (const Sidecar& sidecar : source.sidecars) {
    if (io::base_name(sidecar.name) != kName) continue;
    const std::string path = sidecar.path;
    if (auto config =
            read(path, sidecar.text ? *sidecar.text
                                    : io::read_file(path, kMaxConfig)))
      return *config;
  }
  // Not torchtitan's own, but ckpt leaves one there.
  const std::string inside = io::join(source.path, kName);
  if (io::is_file(inside))
    if (auto config = read(inside, io::read_file(inside, kMaxConfig)))
      return *config;
  throw unfaithful_error(
      {source.path, {}},
      "torchtitan's projections are arranged by heads, and no config.json "
      "says how many there are")
      .with_hint(
          "--config-from DIR names a folder with the model's config.json");
}

}  // namespace ckpt::runs::titan
