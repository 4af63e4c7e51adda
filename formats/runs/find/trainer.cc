// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/trainer.h"

#include <fmt/ranges.h>

#include "ckpt/error.h"
#include "containers/hf/weight_names.h"
#include "lib/embedded.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/suggest.h"

namespace ckpt::runs {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

Source read_source(const Json& json) {
  return {.file = json.at("file"),
          .at = json.value("at", ""),
          .read = json.value("read", ""),
          .rules = json.value("rules", ""),
          .config = json.value("config", ""),
          .world = json.value("world", ""),
          .refused = json.value("refused", ""),
          .hint = json.value("hint", ""),
          .order = json.value("order", "names"),
          .prefixes = json.value("prefixes", Strings{""}),
          .optimizers = json.value("optimizers", Strings{}),
          .others = json.value("others", Strings{}),
          .key = json.value("key", ""),
          .next_step = json.value("next_step", ""),
          .arranged = json.value("arranged", false)};
}

Part read_part(const Json& json) {
  return {.file = json.at("file"),
          .part = json.at("part"),
          .carried = json.value("carried", false),
          .above = json.value("above", false),
          .with = json.value("with", ""),
          .instead = json.value("instead", ""),
          .without = json.value("without", ""),
          .proof = json.value("proof", ""),
          .demanded = json.value("demanded", false),
          .fails = json.value("fails", false),
          .none = json.value("none", ""),
          .world = json.value("world", ""),
          .count = json.value("count", "")};
}

Sole sole_of(const Json& json) {
  Sole sole{.format = json.value("format", ""),
            .at = json.value("at", ""),
            .more = {},
            .weights = json.value("weights", ""),
            .list = json.value("list", "")};
  for (const Json& one : json.value("more", Json::array()))
    sole.more.push_back({.at = one.at("at"), .part = one.at("part")});
  return sole;
}

// Where the Hub's libraries look in a component's folder: what they take
// unasked, then variants.
std::vector<Source> component_sources() {
  std::vector<Source> all;
  for (const char* variant : {"", "fp16", "bf16", "fp32", "non_ema"})
    for (const formats::WeightNames& names : formats::weight_names())
      for (const bool safe : {true, false}) {
        const formats::Stem stem{
            std::string(safe ? names.safetensors : names.torch), variant,
            safe ? ".safetensors" : ".bin"};
        for (const std::string& file : {stem.file(1, 1), stem.index()})
          all.push_back(
              read_source({{"file", file},
                           {"at", file},
                           {"read", safe ? "safetensors" : "torch"}}));
      }
  return all;
}

Trainer read_trainer(const Json& json) {
  Trainer trainer{.name = json.at("name"),
                  .what = json.at("what"),
                  .signature = json.at("signature"),
                  .role_signature = json.value("role_signature", Strings{}),
                  .traces = json.value("traces", Strings{}),
                  .without_sign = {},
                  .objects = json.value("objects", Strings{}),
                  .exported = json.value("exported", ""),
                  .steps = json.value("steps", Strings{}),
                  .last = json.value("last", Strings{}),
                  .tracker = json.value("tracker", ""),
                  .without_tracker = json.value("without_tracker", ""),
                  .pointer = json.value("pointer", ""),
                  .unfinished = json.value("unfinished", Strings{}),
                  .drafts = json.value("drafts", Strings{}),
                  .roles = json.value("roles", Strings{}),
                  .homes = json.value("homes", Strings{}),
                  .weights_beside = json.value("weights_beside", false),
                  .one_model = json.value("one_model", false),
                  .without_optimizer = json.value("without_optimizer", ""),
                  .step_in_name = json.value("step_in_name", false),
                  .of_ranks = json.value("of_ranks", Strings{}),
                  .reset_hint = json.value("reset_hint", ""),
                  .step_file = {},
                  .step_key = {},
                  .step_object = {},
                  .counts = {},
                  .sole = {},
                  .pickled = {},
                  .components = {},
                  .models = {},
                  .optimizers = {},
                  .parts = {}};
  const Json unsigned_step = json.value("unsigned", Json::object());
  trainer.without_sign = {.file = unsigned_step.value("file", ""),
                          .text = unsigned_step.value("text", ""),
                          .is_whole = unsigned_step.value("is_whole", false)};
  const Json step = json.value("step", Json::object());
  trainer.step_file = step.value("file", "");
  trainer.step_key = step.value("key", "");
  trainer.step_object = step.value("object", "");
  const Json counts = json.value("counts", Json::object());
  trainer.counts = {.each = counts.value("each", false),
                    .skips = counts.value("skips", Strings{}),
                    .said_in = counts.value("said_in", ""),
                    .scheduler = counts.value("scheduler", "")};
  trainer.sole = sole_of(json.value("sole", Json::object()));
  const Json pickled = json.value("pickled", Json::object());
  trainer.pickled = {.sign = pickled.value("sign", ""),
                     .model = pickled.value("model", ""),
                     .optimizers = pickled.value("optimizers", ""),
                     .ending = pickled.value("ending", "")};
  const Json components = json.value("components", Json::object());
  trainer.components = {.file = components.value("file", ""),
                        .weighted = components.value("weighted", Strings{})};
  for (const Json& one : json.value("models", Json::array()))
    trainer.models.push_back(read_source(one));
  if (!trainer.components.file.empty()) trainer.models = component_sources();
  for (const Json& one : json.value("optimizers", Json::array()))
    trainer.optimizers.push_back(read_source(one));
  for (const Json& one : json.value("parts", Json::array()))
    trainer.parts.push_back(read_part(one));
  return trainer;
}

std::vector<Trainer> read_trainers() {
  const Json json =
      text::parse_json(embedded_text("trainers"), "trainers.json");
  std::vector<Trainer> all;
  for (const Json& one : json.at("trainers")) all.push_back(read_trainer(one));
  return all;
}

}  // namespace

const std::vector<Trainer>& trainers() {
  static const std::vector<Trainer> all = read_trainers();
  return all;
}

const Trainer& find_trainer(const std::string& name) {
  std::vector<std::string> names;
  for (const Trainer& trainer : trainers()) {
    if (trainer.name == name) return trainer;
    names.push_back(trainer.name);
  }
  names.emplace_back("none");
  const std::string near = text::nearest(name, names);
  throw usage_error({}, "--trainer: unknown trainer \"{}\"",
                    text::printable(name))
      .with_hint(near.empty()
                     ? fmt::format("trainers: {}", fmt::join(names, ", "))
                     : fmt::format("did you mean {}?", near));
}

}  // namespace ckpt::runs
