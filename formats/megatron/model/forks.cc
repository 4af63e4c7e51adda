// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/forks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "formats/megatron/model/facts.h"
#include "lib/embedded.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"
#include "models/expr.h"
#include "models/view.h"

namespace ckpt::megatron {
namespace {

using families::Expr;
using families::View;
using nlohmann::json;
using pickle::Document;
using pickle::Id;
using pickle::Type;

constexpr std::string_view kArgsObject = "args";

const json& forks() {
  static const json all =
      json::parse(families::embedded_text("megatron_forks")).at("forks");
  return all;
}

std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  if (pickle::is_foreign(value)) return pickle::foreign_name(value);
  return text::printable(
      value.dump(-1, ' ', true, json::error_handler_t::replace)
          .substr(0, kMost));
}

bool is_kind(const json& value, std::string_view kind) {
  if (value.is_null()) return true;
  if (kind == "a text") return value.is_string();
  if (kind == "True or False")
    return value.is_boolean() || value == 0 || value == 1;
  if (kind == "a whole number or a list" && value.is_array()) return true;
  if (kind == "a number") return value.is_number();
  return value.is_number_integer();
}

// The args of a fork, as expressions see them.
class Words : public Expr::Scope {
 public:
  Words(const Document& document, Id dict, const std::string& path)
      : document_(document), dict_(dict), path_(path) {
    if (!document.is(dict, Type::kDict)) return;
    for (const json& fork : forks())
      for (const json& mark : fork.at("marks"))
        if (!fork_ && is_there(mark.get_ref<const std::string&>()))
          fork_ = &fork;
  }

  const json* fork() const { return fork_; }
  const std::string& name() const {
    return fork_->at("name").get_ref<const std::string&>();
  }

  const json& value(const std::string& name) const override {
    const Id id = document_.find(dict_, name);
    if (id == pickle::kNoId) return held_ = nullptr;
    if (const auto word = enumerated(name, id)) return held_ = *word;
    held_ = pickle::to_config(document_, id);
    check_kind(name);
    return held_;
  }
  bool is_true(const char* key) const {
    return fork_ && fork_->contains(key) && eval(fork_->at(key)) == json(true);
  }
  json eval(const json& expression) const {
    return Expr(expression.get_ref<const std::string&>()).eval(*this);
  }

 private:
  void check_kind(const std::string& name) const {
    const auto kinds = fork_->find("kinds");
    if (kinds == fork_->end()) return;
    for (const auto& [kind, names] : kinds->items())
      if (std::ranges::count(names, json(name)) != 0 && !is_kind(held_, kind))
        throw input_error({path_, {}}, "args.{} is {}, expected {}", name,
                          shown(held_), kind)
            .with_hint("it is an arg of " + this->name());
  }

  bool is_there(const std::string& key) const {
    const Id id = document_.find(dict_, key);
    return id != pickle::kNoId && !document_.is(id, Type::kNone);
  }

  // The word of an Enum's member, which a pickle makes of its number.
  std::optional<std::string> enumerated(const std::string& name, Id id) const {
    const auto enums = fork_->find("enums");
    if (enums == fork_->end() || !enums->contains(name) ||
        !document_.is(id, Type::kCall))
      return std::nullopt;
    const Id args = document_.call(id).args;
    if (!document_.is(args, Type::kTuple) || document_.items(args).size() != 1)
      return std::nullopt;
    const auto number = document_.as_int(document_.items(args)[0]);
    const json& words = enums->at(name);
    const std::string key = number ? std::to_string(*number) : std::string();
    if (!words.contains(key)) return std::nullopt;
    return words.at(key).get<std::string>();
  }

  const Document& document_;
  Id dict_;
  const std::string path_;
  const json* fork_ = nullptr;
  mutable json held_;
};

// Calls `use` with the args of the catalog, if they are a fork's.
template <class Use>
void with_fork(const Catalog& catalog, Use use) {
  for (const Object& object : catalog.objects) {
    if (object.name != kArgsObject || !object.document) continue;
    const Words words(*object.document,
                      args_dict(*object.document, object.node), catalog.path);
    if (words.fork()) return use(words);
  }
}

void check_needs(const Words& words, const std::string& path) {
  const auto needs = words.fork()->find("needs");
  if (needs == words.fork()->end()) return;
  for (const auto& [arg, condition] : needs->items())
    if (words.eval(condition) != json(true))
      throw unfaithful_error(
          {path, {}}, "args.{} is {}: {} has this model, Megatron-LM has not",
          arg, shown(words.value(arg)), words.name())
          .with_hint("its own converter knows its models");
}

struct Heads {
  uint64_t all = 0, groups = 0, each = 0;  // each: rows of a head
};

// The rows of attention, [ng][nh / ng q, k, v][each].
Heads heads_of(const Facts& facts, uint64_t rows, const Tensor& tensor,
               const std::string& path) {
  Heads heads{.all = facts.num_attention_heads.value_or(0), .groups = 0};
  heads.groups = facts.num_query_groups.value_or(heads.all);
  const uint64_t sum = heads.all + 2 * heads.groups;
  if (heads.groups != 0 && heads.all % heads.groups == 0 && rows % sum == 0)
    heads.each = rows / sum;
  if (heads.each == 0 || heads.each % 2 != 0 ||
      (facts.kv_channels && *facts.kv_channels != heads.each))
    throw unfaithful_error({path, tensor.name},
                           "{} rows are not those of {} heads in {} groups, "
                           "which args say",
                           rows, heads.all, heads.groups);
  return heads;
}

// A view as [groups, rows of each, width]; a bias has no width.
View by_groups(const View& view, uint64_t groups, uint64_t rows) {
  Shape shape{groups, rows};
  if (view.shape().size() == 2) shape.push_back(view.shape()[1]);
  return view.reshape(shape);
}

View flattened(const View& view) {
  const Shape& all = view.shape();
  Shape shape{all[0] * all[1]};  // rows, as they were
  if (all.size() == 3) shape.push_back(all[2]);
  return view.reshape(shape);
}

// Queries' and keys' rows of a head, from pairs to halves.
View halves_of_pairs(const View& fused, const Heads& heads) {
  const uint64_t queries = heads.all / heads.groups;
  const View all = by_groups(fused, heads.groups, (queries + 2) * heads.each);
  const View values = all.slice(1, (queries + 1) * heads.each, heads.each);
  const View turned = all.slice(1, 0, (queries + 1) * heads.each);
  const Shape& shape = turned.shape();
  Shape fine{heads.groups, queries + 1, heads.each / 2, 2};
  std::vector<uint32_t> order{0, 1, 3, 2};
  if (shape.size() == 3) {
    fine.push_back(shape[2]);
    order.push_back(4);
  }
  const View halves = turned.reshape(fine).permute(order).reshape(shape);
  return flattened(View::concat(std::vector<View>{halves, values}, 1));
}

View gate_first(const View& view, const Tensor& tensor,
                const std::string& path) {
  const uint64_t rows = view.shape()[0];
  if (rows % 2 != 0)
    throw unfaithful_error({path, tensor.name}, "{} rows are not up and gate",
                           rows);
  return View::concat(std::vector<View>{view.slice(0, rows / 2, rows / 2),
                                        view.slice(0, 0, rows / 2)},
                      0);
}

bool is_parameter(const std::string& name, std::string_view module) {
  for (const std::string_view word : {".weight", ".bias"})
    if (name.ends_with(std::string(module) + std::string(word))) return true;
  return false;
}

class Arranging {
 public:
  Arranging(Catalog& catalog, const Facts& facts)
      : catalog_(catalog), facts_(facts) {}

  void run(const Words& words) {
    const bool pairs = words.is_true("pairs");
    const bool up_first = words.is_true("up_first");
    locate(catalog_);
    if (words.is_true("key_value")) join_queries();
    for (Tensor& tensor : catalog_.tensors) {
      const std::string& name = own(tensor);
      if (tensor.shape.empty()) continue;
      if (pairs && is_parameter(name, "self_attention.linear_qkv"))
        halves_of_pairs(View::of(tensor), heads_of(facts_, tensor.shape[0],
                                                   tensor, catalog_.path))
            .into(tensor);
      if (up_first && is_parameter(name, "mlp.linear_fc1"))
        gate_first(View::of(tensor), tensor, catalog_.path).into(tensor);
    }
    if (pairs || up_first) {
      catalog_.claims.clear();
      catalog_.assumptions.push_back(fmt::format(
          "rows are rearranged as Megatron-Core has them: args are those of {}",
          words.name()));
    }
  }

 private:
  static const std::string& own(const Tensor& tensor) {
    return tensor.param.empty() ? tensor.name : tensor.param;
  }

  // self_attention.query and .key_value become linear_qkv.
  void join_queries() {
    constexpr std::string_view kKeyValue = "self_attention.key_value.";
    constexpr std::string_view kQuery = "self_attention.query.";
    constexpr std::string_view kFused = "self_attention.linear_qkv.";
    std::unordered_map<std::string, const Tensor*> others;
    const auto fused = [&](std::string name, std::string_view part) {
      return name.replace(name.find(part), part.size(), kFused);
    };
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.name.find(kKeyValue) != tensor.name.npos)
        others.emplace(fused(tensor.name, kKeyValue), &tensor);
    if (others.empty()) return;
    std::vector<Tensor> all;
    for (const Tensor& tensor : catalog_.tensors) {
      if (tensor.name.find(kKeyValue) != tensor.name.npos) continue;
      all.push_back(tensor);
      if (tensor.name.find(kQuery) == tensor.name.npos) continue;
      Tensor& whole = all.back();
      whole.name = fused(tensor.name, kQuery);
      if (!whole.param.empty()) whole.param = fused(whole.param, kQuery);
      const auto other = others.find(whole.name);
      if (other == others.end() || tensor.shape.empty() ||
          other->second->shape.size() != tensor.shape.size())
        throw unfaithful_error({catalog_.path, tensor.name},
                               "has no key_value beside it");
      join(tensor, *other->second, whole);
      others.erase(other);
    }
    if (!others.empty())
      throw unfaithful_error({catalog_.path, others.begin()->second->name},
                             "has no query beside it");
    catalog_.tensors = std::move(all);
    catalog_.claims.clear();
  }

  void join(const Tensor& query, const Tensor& other, Tensor& whole) const {
    const uint64_t rows = query.shape[0] + other.shape[0];
    const Heads heads = heads_of(facts_, rows, query, catalog_.path);
    if (other.shape[0] != 2 * heads.groups * heads.each)
      throw unfaithful_error({catalog_.path, other.name},
                             "{} rows are not keys and values of {} groups of "
                             "{} rows",
                             other.shape[0], heads.groups, heads.each);
    const uint64_t queries = heads.all / heads.groups;
    flattened(
        View::concat(
            std::vector<View>{
                by_groups(View::of(query), heads.groups, queries * heads.each),
                by_groups(View::of(other), heads.groups, 2 * heads.each)},
            1))
        .into(whole);
    whole.tp = {};
  }

  Catalog& catalog_;
  const Facts& facts_;
};

}  // namespace

json words_of_fork(const Document& document, Id dict, const std::string& path) {
  json made = json::object();
  const Words words(document, dict, path);
  if (!words.fork()) return made;
  for (const auto& [arg, expression] : words.fork()->at("args").items())
    made[arg] = words.eval(expression);
  return made;
}

std::map<std::string, std::string> keys_of_fork(const Document& document,
                                                Id dict) {
  std::map<std::string, std::string> keys;
  const Words words(document, dict, {});
  if (!words.fork()) return keys;
  for (const auto& [arg, expression] : words.fork()->at("args").items()) {
    const Expr parsed(expression.get_ref<const std::string&>());
    if (const auto& names = parsed.names(); !names.empty())
      keys[arg] = fmt::format("{}", fmt::join(names, ", "));
  }
  return keys;
}

void arrange_fork(Catalog& catalog, const Facts& facts) {
  with_fork(catalog, [&](const Words& words) {
    check_needs(words, catalog.path);
    Arranging(catalog, facts).run(words);
  });
}

void refuse_fork(const Catalog& catalog) {
  with_fork(catalog, [&](const Words& words) {
    if (!words.is_true("pairs") && !words.is_true("up_first")) return;
    throw unfaithful_error(
        {catalog.path, {}},
        "args are those of {}, whose modules arrange rows in another way than "
        "Megatron-Core's",
        words.name())
        .with_hint(
            "--to safetensors makes a model of transformers of it, which can "
            "be converted to Megatron");
  });
}

}  // namespace ckpt::megatron
