// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "formats/runs/write/composing.h"
#include "formats/target.h"

namespace ckpt::runs {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// The source's position, else that of a scheduler that took every step.
std::optional<int64_t> Composing::position() const {
  if (!states_.scheduler.from.empty()) return states_.scheduler.position;
  if (states_.step) return static_cast<int64_t>(*states_.step);
  return std::nullopt;
}

// The scheduler's own form if that fits these groups, else one that has a
// position and leaves the rule to the target's function.
Id Composing::scheduler(Document& document) {
  const Scheduler& its = states_.scheduler;
  const Id bases = states_.document->find(its.whole, "base_lrs");
  const bool own =
      form_.trainer == "accelerate" || form_.trainer == "lightning";
  if (own && its.whole == kNoId) return kNoId;
  if (own && states_.document->is(bases, Type::kList) &&
      states_.document->items(bases).size() == groups_.size())
    return document.import(*states_.document, its.whole);
  const auto position = this->position();
  if (!position || groups_.empty()) return kNoId;
  made_scheduler_ = true;
  return lambda_scheduler(document, adam_, groups_, *position);
}

void Composing::add_states() {
  Document document;
  if (!form_.scheduler.empty()) {
    const Id value = scheduler(document);
    if (value != kNoId)
      rest_.push_back(
          value_file(std::string(form_.scheduler), document, value));
    scheduled_ = value != kNoId;
  }
  if (form_.trainer == "hf_trainer")
    rest_.push_back(formats::literal_file(
        "trainer_state.json", trainer_state_json(states_.step.value_or(0))));
  if (form_.trainer == "accelerate") add_accelerate_steps();
  if (form_.trainer == "verl") add_verl_states();
  if (form_.trainer == "lightning" && !form_.one_file)
    rest_.push_back(
        value_file("meta.pt", document, lightning_values(document)));
  if (form_.trainer == "torchtitan") scheduled_ = position().has_value();
}

// The count within a gradient accumulation, of which nothing is left once a
// step is saved.
void Composing::add_accelerate_steps() {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    Document document;
    const Id dict = document.add_container(Type::kDict);
    document.set(dict, "step", document.add_int(0));
    rest_.push_back(
        value_file(fmt::format("random_states_{}.pkl", rank), document, dict));
  }
}

// Each rank of verl opens its own file; without "rng" it keeps its random
// state.
void Composing::add_verl_states() {
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    Document document;
    const Id value = scheduler(document);
    const Id dict = document.add_container(Type::kDict);
    document.set(dict, "lr_scheduler",
                 value == kNoId ? document.add_none() : value);
    scheduled_ = value != kNoId;
    rest_.push_back(value_file(
        fmt::format("extra_state_world_size_{}_rank_{}.pt", ranks_, rank),
        document, dict));
  }
  rest_.push_back(formats::literal_file(
      "fsdp_config.json",
      fmt::format("{{\n    \"FSDP_version\": 2,\n    \"world_size\": "
                  "{}\n}}",
                  ranks_)));
}

}  // namespace ckpt::runs
