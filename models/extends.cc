// SPDX-License-Identifier: Apache-2.0
#include "models/extends.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::families {

// All values of the base get the place of the line that asks for them.
class Inheritance {
 public:
  Inheritance(Located& mine, const Located& base)
      : mine_(mine), base_(base), at_(mine.places_.members["extends"].offset) {}

  void run() {
    keep_named();
    wrap();
    merge(mine_.root_, mine_.places_, base_root_, 0);
    for (const char* done : {"extends", "wraps"}) {
      mine_.root_.erase(done);
      mine_.places_.members.erase(done);
    }
    for (auto& [name, dialect] : mine_.root_["dialects"].items())
      name_hf_config(dialect, mine_.places_.members["dialects"].members[name]);
  }

 private:
  using Place = Located::Place;

  // A base's dialects and its arrangements in vLLM and in ModelOpt are for
  // those that ask.
  void keep_named() {
    base_root_ = base_.root_;
    for (const char* own : {"schema", "family", "notes", "extends"})
      base_root_.erase(own);
    for (const char* asked : {"vllm", "modelopt"})
      if (!mine_.root_.contains(asked)) base_root_.erase(asked);
    const auto named = mine_.root_.find("dialects");
    Json& dialects = base_root_["dialects"];
    for (auto at = dialects.begin(); at != dialects.end();)
      at = named != mine_.root_.end() && named->is_object() &&
                   named->contains(at.key())
               ? std::next(at)
               : dialects.erase(at);
    for (Json& dialect : dialects) dialect.erase("notes");
  }

  Place place_of(const Json& value) const {
    Place place;
    place.offset = at_;
    if (value.is_array())
      for (const Json& item : value) place.items.push_back(place_of(item));
    if (value.is_object())
      for (const auto& [key, item] : value.items())
        place.members[key] = place_of(item);
    return place;
  }

  // For a base that is one part of this model: translates its names.
  void wrap() {
    const auto wraps = mine_.root_.find("wraps");
    if (wraps == mine_.root_.end()) return;
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const Value& pair : mine_.root().member("wraps").items()) {
      const std::vector<std::string> both = texts(pair);
      if (both.size() != 2 || both[0].empty())
        pair.fail("expected [\"from\", \"to\"]");
      pairs.emplace_back(both[0], both[1]);
    }
    if (Json& hf = base_root_["hf"]; hf.is_object())
      for (const char* own : {"prefixes", "repeats"}) hf.erase(own);
    for (Json& dialect : base_root_["dialects"]) {
      if (!dialect.contains("rules")) continue;
      for (Json& rule : dialect["rules"])
        for (Json& name : rule["hf"]) name = wrapped(name, pairs);
    }
  }

  static Json wrapped(
      const Json& name,
      const std::vector<std::pair<std::string, std::string>>& pairs) {
    if (!name.is_string()) return name;
    const auto text = name.get<std::string>();
    for (const auto& [from, to] : pairs)
      if (text.starts_with(from)) return to + text.substr(from.size());
    return name;
  }

  static bool is_list_of_layers(const Json& value) {
    return value.contains("each");
  }

  void merge(Json& mine, Place& places, const Json& base, size_t depth) {
    for (const auto& [key, value] : base.items()) {
      const auto own = mine.find(key);
      if (own == mine.end()) {
        mine[key] = value;
        places.members[key] = place_of(value);
      } else if (own->is_null()) {
        mine.erase(own);
        places.members.erase(key);
      } else if (key == "rules" && own->is_array() && value.is_array()) {
        merge_rules(*own, places.members[key], value);
      } else if (own->is_object() && value.is_object() && depth < kDeepest &&
                 !is_list_of_layers(*own) && !is_list_of_layers(value)) {
        merge(*own, places.members[key], value, depth + 1);
      }
    }
  }

  static std::string target_of(const Json& rule) {
    if (!rule.is_object()) return {};
    const auto to = rule.find("to");
    return to != rule.end() && to->is_string() ? to->get<std::string>()
                                               : std::string();
  }

  static bool is_removed(const Json& rule) {
    return rule.is_object() && rule.contains("hf") && rule.at("hf").is_null();
  }

  void merge_rules(Json& mine, Place& places, const Json& base) {
    Json all = Json::array();
    std::vector<Place> where;
    std::set<std::string> done;
    const auto take_mine = [&](const std::string& to) {
      for (size_t i = 0; i < mine.size(); ++i) {
        if (target_of(mine[i]) != to || is_removed(mine[i])) continue;
        all.push_back(mine[i]);
        where.push_back(places.items[i]);
      }
      done.insert(to);
    };
    const auto is_mine = [&](const std::string& to) {
      return std::any_of(mine.begin(), mine.end(), [&](const Json& rule) {
        return target_of(rule) == to;
      });
    };
    for (const Json& rule : base) {
      const std::string to = target_of(rule);
      if (!is_mine(to)) {
        all.push_back(rule);
        where.push_back(place_of(rule));
      } else if (!done.contains(to)) {
        take_mine(to);
      }
    }
    for (const Json& rule : Json(mine))
      if (!done.contains(target_of(rule))) take_mine(target_of(rule));
    mine = std::move(all);
    places.items = std::move(where);
  }

  // Makes config.json name the family's own class, not the base's.
  void name_hf_config(Json& dialect, Place& places) {
    if (!dialect.is_object() || !dialect.contains("hf_config")) return;
    const Json& hf = mine_.root_["hf"];
    for (const char* key : {"model_type", "architectures"}) {
      Place& place = places.members["hf_config"].members[key];
      if (place.offset != at_ || !hf.is_object() || !hf.contains(key)) continue;
      const Json& named = hf.at(key);
      const Json first = named.is_array() && !named.empty() ? named[0] : named;
      Json& said = dialect["hf_config"][key];
      said =
          std::string_view(key) == "model_type" ? first : Json::array({first});
      place = place_of(said);
    }
  }

  static constexpr size_t kDeepest = 64;
  Located& mine_;
  const Located& base_;
  const size_t at_;
  Json base_root_;
};

void inherit(Located& mine, const Located& base) {
  Inheritance(mine, base).run();
}

}  // namespace ckpt::families
