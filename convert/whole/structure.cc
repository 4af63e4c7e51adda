// SPDX-License-Identifier: Apache-2.0
#include "convert/whole/structure.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include "ckpt/note.h"
#include "lib/text/number.h"

namespace ckpt::families {
namespace {

// Ids of suffixes ("attn.q.weight"), ascending.
using Suffixes = std::vector<uint32_t>;

struct Member {
  uint32_t suffix;
  const Tensor* tensor;
};

// Modules that differ in one number: "model.layers", "model.layers.3.experts".
using Stack = std::map<uint64_t, std::vector<Member>>;

bool counts_layers(std::string_view stack) {
  constexpr std::string_view kNames[] = {"layers", "layer", "h",
                                         "blocks", "block", "experts"};
  const std::string_view last = stack.substr(stack.rfind('.') + 1);
  return std::ranges::find(kNames, last) != std::end(kNames);
}

class StructureCheck {
 public:
  StructureCheck(const std::vector<const Tensor*>& tensors,
                 const nlohmann::json& config, const std::string& path)
      : config_(config), path_(path) {
    for (const Tensor* tensor : tensors) add(*tensor);
  }

  Structure run() {
    for (const auto& [name, stack] : stacks_) check(name, stack);
    if (config_.is_object()) check_layers();
    return std::move(found_);
  }

 private:
  // Adds the tensor to the stack of each number in its name.
  void add(const Tensor& tensor) {
    const std::string_view name = tensor.name;
    for (size_t at = 0; at < name.size();) {
      const size_t end = std::min(name.find('.', at), name.size());
      const auto number = text::number(name.substr(at, end - at));
      if (number && at > 0 && end < name.size()) {
        const auto suffix = static_cast<uint32_t>(suffixes_.size());
        const auto [known, fresh] =
            suffixes_.try_emplace(std::string(name.substr(end + 1)), suffix);
        if (fresh) names_.push_back(known->first);
        stacks_[std::string(name.substr(0, at - 1))][*number].push_back(
            {known->second, &tensor});
      }
      at = end + 1;
    }
  }

  static Suffixes suffixes_of(const std::vector<Member>& members) {
    Suffixes all;
    for (const Member& member : members) all.push_back(member.suffix);
    std::ranges::sort(all);
    return all;
  }

  // True for a module of modules: nn.Sequential has bare weights.
  bool is_deep(const Suffixes& set) const {
    return std::ranges::any_of(set, [&](uint32_t suffix) {
      return names_[suffix].find('.') != std::string_view::npos;
    });
  }

  void check(const std::string& name, const Stack& stack) {
    std::map<Suffixes, uint64_t> sets;
    std::map<uint64_t, Suffixes> of;
    for (const auto& [number, members] : stack)
      ++sets[of[number] = suffixes_of(members)];
    const auto regular = [&](const Suffixes& set) {
      return sets.at(set) > 1 && is_deep(set);
    };
    check_gaps(name, of, regular);
    check_sets(name, of, sets, regular);
    check_shapes(stack);
    for (const auto& [set, count] : sets) {
      found_.repeats = found_.repeats || (count > 1 && is_deep(set));
      found_.uneven =
          found_.uneven || (count == 1 && stack.size() > 1 && is_deep(set));
    }
    if (std::ranges::any_of(
            sets, [&](const auto& one) { return is_deep(one.first); }))
      counts_.insert(stack.size());
  }

  template <class Regular>
  void check_gaps(const std::string& name,
                  const std::map<uint64_t, Suffixes>& of,
                  const Regular& regular) {
    auto before = of.begin();
    if (before->first > 0 && regular(before->second) && counts_layers(name))
      add_gap(name, 0, before->first, of.rbegin()->first);
    for (auto next = std::next(before); next != of.end(); before = next++) {
      if (next->first == before->first + 1) continue;
      const bool alike = before->second == next->second;
      if ((alike && is_deep(next->second)) ||
          (regular(before->second) && regular(next->second)))
        add_gap(name, before->first + 1, next->first, of.rbegin()->first);
    }
  }

  void add_gap(const std::string& name, uint64_t begin, uint64_t end,
               uint64_t last) {
    const std::string which = end - begin == 1
                                  ? std::to_string(begin)
                                  : fmt::format("{}-{}", begin, end - 1);
    found_.problems.push_back(damage("layer_gap", {path_, name},
                                     "has no {}, and others up to {}", which,
                                     last));
  }

  // One in the middle that lacks what a recurring set has.
  template <class Regular>
  void check_sets(const std::string& name,
                  const std::map<uint64_t, Suffixes>& of,
                  const std::map<Suffixes, uint64_t>& sets,
                  const Regular& regular) {
    if (of.size() < 3) return;
    for (auto at = std::next(of.begin()); at != std::prev(of.end()); ++at) {
      const Suffixes& mine = at->second;
      if (sets.at(mine) > 1) continue;
      for (const auto& [set, count] : sets) {
        if (set.size() <= mine.size() || !regular(set) ||
            !std::ranges::includes(set, mine))
          continue;
        Suffixes lacks;
        std::ranges::set_difference(set, mine, std::back_inserter(lacks));
        for (const uint32_t suffix : lacks)
          found_.problems.push_back(damage(
              "missing_tensor",
              {path_, fmt::format("{}.{}.{}", name, at->first, names_[suffix])},
              "is missing, {} others like it have one", count));
        break;
      }
    }
  }

  // As many elements as all the others have, in another shape: flattened or
  // transposed.
  void check_shapes(const Stack& stack) {
    struct Seen {
      std::map<Shape, std::pair<uint64_t, const Tensor*>> shapes;
    };
    std::unordered_map<uint32_t, Seen> seen;
    for (const auto& [number, members] : stack)
      for (const Member& member : members) {
        auto& [count, first] = seen[member.suffix].shapes[member.tensor->shape];
        ++count;
        first = member.tensor;
      }
    for (const auto& [suffix, one] : seen) {
      if (one.shapes.size() != 2) continue;
      const auto& a = *one.shapes.begin();
      const auto& b = *one.shapes.rbegin();
      const auto& [odd, usual] =
          a.second.first < b.second.first ? std::tie(a, b) : std::tie(b, a);
      if (odd.second.first != 1 || usual.second.first < 2 ||
          element_count(odd.first) != element_count(usual.first))
        continue;
      const std::string& tensor = odd.second.second->name;
      if (told_.insert(tensor).second)
        found_.problems.push_back(damage(
            "shape", {path_, tensor}, "is {}, {} others like it are {}",
            to_string(odd.first), usual.second.first, to_string(usual.first)));
    }
  }

  // Those of `keys` that are whole numbers, in config.json or the part of it
  // that is about the language model.
  std::vector<uint64_t> numbers(const std::vector<const char*>& keys) const {
    const nlohmann::json* at = &config_;
    for (const char* inner : {"text_config", "llm_config", "language_config"})
      if (const auto found = config_.find(inner);
          found != config_.end() && found->is_object())
        at = &*found;
    std::vector<uint64_t> all;
    for (const char* key : keys)
      if (const auto found = at->find(key);
          found != at->end() && found->is_number_unsigned())
        all.push_back(found->get<uint64_t>());
    return all;
  }

  // Albert and others use one layer many times, so one alone says nothing; nor
  // does a count where the configuration has several ("H_cycles").
  void check_layers() {
    if (counts_.empty() || *counts_.rbegin() == 1) return;
    const auto more = numbers({"num_nextn_predict_layers", "num_mtp_layers"});
    const uint64_t further = more.empty() ? 0 : more.front();
    for (const auto& keys :
         {std::vector{"num_hidden_layers", "n_layer", "n_layers", "num_layers"},
          std::vector{"encoder_layers"}, std::vector{"decoder_layers"}})
      check_count(numbers(keys), further);
  }

  // LongCat's layers have two halves each, and num_hidden_layers counts those.
  void check_count(const std::vector<uint64_t>& wanted, uint64_t further) {
    if (wanted.empty()) return;
    found_.compared = true;
    if (std::ranges::any_of(wanted, [&](uint64_t one) {
          return counts_.contains(one) || counts_.contains(one + further);
        }))
      return;
    const uint64_t most = *counts_.rbegin();
    for (const auto& [key, value] : config_.items())
      if (value.is_number_unsigned() && value == most &&
          key.find("layer") != key.npos) {
        found_.compared = false;
        return;
      }
    found_.problems.push_back(damage("configuration", {path_, {}},
                                     "has {} layers, and config.json says {}",
                                     most, wanted.front()));
  }

  const nlohmann::json& config_;
  const std::string& path_;
  std::unordered_map<std::string, uint32_t> suffixes_;
  std::vector<std::string_view> names_;
  std::map<std::string, Stack> stacks_;
  std::set<uint64_t> counts_;  // of members, in stacks of modules
  std::set<std::string> told_;
  Structure found_;
};

}  // namespace

Structure check_structure(const std::vector<const Tensor*>& tensors,
                          const nlohmann::json& config,
                          const std::string& path) {
  return StructureCheck(tensors, config, path).run();
}

}  // namespace ckpt::families
