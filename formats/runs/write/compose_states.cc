// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/pattern.h"
#include "formats/runs/write/composing.h"
#include "formats/target.h"

namespace ckpt::runs {

using Json = nlohmann::json;
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
  if (writes_.scheduler_kept && its.whole == kNoId) return kNoId;
  if (writes_.scheduler_kept && states_.document->is(bases, Type::kList) &&
      states_.document->items(bases).size() == groups_.size())
    return document.import(*states_.document, its.whole);
  const auto position = this->position();
  if (!position || groups_.empty()) return kNoId;
  by_position_ = true;
  return lambda_scheduler(document, adam_, groups_, *position);
}

// What "$step", "$position" and "$ranks" stand for; nothing if it isn't known.
std::optional<int64_t> Composing::number(std::string_view variable) {
  if (variable == "$ranks") return ranks_;
  if (variable == "$step") {
    if (!states_.step) return std::nullopt;
    return static_cast<int64_t>(*states_.step);
  }
  const auto known = position();
  scheduled_ |= known.has_value();
  by_position_ |= known.has_value();
  return known;
}

// The value that a trainer's record describes; none for "$step?" and the like
// if it isn't known.
Id Composing::made(Document& document, const Json& value) {
  if (value.is_object()) {
    const Id dict = document.add_container(Type::kDict);
    for (const auto& [key, one] : value.items())
      if (const Id id = made(document, one); id != kNoId)
        document.set(dict, key, id);
    return dict;
  }
  if (value.is_array()) {
    const Id list = document.add_container(Type::kList);
    for (const Json& one : value)
      if (const Id id = made(document, one); id != kNoId)
        document.append(list, id);
    return list;
  }
  if (value.is_boolean()) return document.add_bool(value.get<bool>());
  if (value.is_number_integer()) return document.add_int(value.get<int64_t>());
  if (value.is_number()) return document.add_float(value.get<double>());
  if (!value.is_string()) return document.add_none();
  std::string text = value.get<std::string>();
  if (!text.starts_with('$')) return document.add_string(text);
  const bool may_lack = text.ends_with('?');
  if (may_lack) text.pop_back();
  if (text == "$scheduler") {
    const Id id = scheduler(document);
    scheduled_ |= id != kNoId;
    return id == kNoId && !may_lack ? document.add_none() : id;
  }
  const auto count = number(text);
  return !count && may_lack ? kNoId : document.add_int(count.value_or(0));
}

// The same for a file of JSON; "discarded" if it isn't known.
Json Composing::made_json(const Json& value) {
  if (value.is_structured()) {
    Json all(value.type());
    for (const auto& [key, one] : value.items())
      if (Json made = made_json(one); made.is_discarded())
        continue;
      else if (value.is_object())
        all[key] = std::move(made);
      else
        all.push_back(std::move(made));
    return all;
  }
  if (!value.is_string() ||
      !value.get_ref<const std::string&>().starts_with('$'))
    return value;
  std::string text = value.get<std::string>();
  const bool may_lack = text.ends_with('?');
  if (may_lack) text.pop_back();
  const auto count = number(text);
  return !count && may_lack ? Json(Json::value_t::discarded)
                            : Json(count.value_or(0));
}

// A dict or a state dict of pickles. A source of the same trainer keeps what it
// has, the user's own values too.
Id Composing::value_of(Document& document, const WrittenValue& row) {
  return row.own && trainer_in(source_) == form_.trainer
             ? own_value(document)
             : made(document, row.value);
}

void Composing::add_states() {
  if (form_.one_file) return;
  for (const WrittenValue& row : writes_.values) {
    const uint32_t files = has(row.file, "r") ? ranks_
                           : row.file.empty() ? 0
                                              : 1;
    for (uint32_t rank = 0; rank < files; ++rank) {
      const std::string path = fill(row.file, {{"W", ranks_}, {"r", rank}});
      if (path.ends_with(".json")) {
        rest_.push_back(
            formats::literal_file(path, made_json(row.value).dump(2) + "\n"));
        continue;
      }
      Document document;
      if (const Id value = value_of(document, row); value != kNoId)
        rest_.push_back(value_file(path, document, value));
    }
  }
}

}  // namespace ckpt::runs
