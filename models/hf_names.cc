// SPDX-License-Identifier: Apache-2.0
#include "models/hf_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/embedded.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

using Json = nlohmann::json;
using text::printable;

// "model.layers.{}.mlp.gate.weight" and its numbers.
struct Numbered {
  std::string text;
  std::vector<std::string> numbers;
};

Numbered numbered(std::string_view name) {
  Numbered made;
  while (true) {
    const std::string_view word = name.substr(0, name.find('.'));
    if (!word.empty() && std::ranges::all_of(word, text::is_digit)) {
      made.text += "{}";
      made.numbers.emplace_back(word);
    } else {
      made.text += word;
    }
    if (word.size() == name.size()) return made;
    made.text += '.';
    name.remove_prefix(word.size() + 1);
  }
}

std::string filled(std::string_view text,
                   const std::vector<std::string>& numbers) {
  std::string name;
  size_t next = 0;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, 2) == "{}" && next < numbers.size()) {
      name += numbers[next++];
      at += 2;
    } else {
      name += text[at++];
    }
  }
  return name;
}

// Names of one kind, and those of the other for each.
class Renames {
 public:
  explicit Renames(const Json& table) {
    for (const Json& row : table.value("prefixes", Json::array()))
      prefixes_.emplace_back(row[0], row[1]);
    for (const Json& row : table.value("names", Json::array())) {
      there_[0].emplace(row[0], row[1]);
      there_[1].emplace(row[1], row[0]);
    }
    for (const Json& name : table.value("kept", Json::array()))
      kept_.insert(name);
  }

  // Whose name it is, by the longest prefix; nothing if it is both's.
  std::optional<HfNames> kind_of(const std::string& name) const {
    if (there_[0].contains(name) != there_[1].contains(name))
      return there_[0].contains(name) ? HfNames::kModule : HfNames::kHub;
    size_t longest[2] = {0, 0};
    for (const auto& [module, hub] : prefixes_) {
      if (name.starts_with(module))
        longest[0] = std::max(longest[0], module.size());
      if (name.starts_with(hub)) longest[1] = std::max(longest[1], hub.size());
    }
    if (longest[0] == longest[1]) return std::nullopt;
    return longest[0] > longest[1] ? HfNames::kModule : HfNames::kHub;
  }

  // The other kind's name for a name of `from`'s.
  std::string other(const std::string& name, HfNames from) const {
    const bool module = from == HfNames::kModule;
    const auto& names = there_[module ? 0 : 1];
    if (const auto found = names.find(name); found != names.end())
      return found->second;
    std::string_view best, instead;
    for (const auto& [ours, hubs] : prefixes_) {
      const std::string& prefix = module ? ours : hubs;
      if (!name.starts_with(prefix) || prefix.size() < best.size()) continue;
      best = prefix;
      instead = module ? hubs : ours;
    }
    return std::string(instead) + name.substr(best.size());
  }

  // A table of single names knows all names of the class.
  bool knows(const std::string& name) const {
    return kept_.empty() || kept_.contains(name) || there_[0].contains(name) ||
           there_[1].contains(name);
  }

 private:
  std::vector<std::pair<std::string, std::string>> prefixes_;
  std::map<std::string, std::string, std::less<>> there_[2];
  std::set<std::string, std::less<>> kept_;
};

// A stacked tensor of a module, and the parts of one expert in it.
struct Stack {
  std::string module;
  std::vector<std::string> parts;
};

const Json* table_of(const Json& config) {
  static const Json all = Json::parse(embedded_text("hf_names")).at("tables");
  if (!config.is_object()) return nullptr;
  const Json classes = config.value("architectures", Json());
  if (!classes.is_array() || classes.empty()) return nullptr;
  const auto find = [&](const Json& name) -> const Json* {
    for (const Json& table : all)
      if (std::ranges::count(table.at("classes"), name) > 0) return &table;
    return nullptr;
  };
  const Json* own = find(classes[0]);
  if (own || !classes[0].is_string()) return own;
  // transformers renames by the model, whatever head is on it. A list of single
  // names is of one class.
  const std::string name = classes[0];
  const size_t task = name.rfind("For");
  const Json* other =
      task == name.npos ? nullptr : find(name.substr(0, task) + "ForCausalLM");
  return other && !other->contains("kept") ? other : nullptr;
}

class Taking {
 public:
  Taking(Catalog& catalog, const Json& config, const Json& table)
      : catalog_(catalog), config_(config), renames_(table) {
    for (const Json& row : table.value("experts", Json::array()))
      stacks_.push_back({row[0], {row.begin() + 1, row.end()}});
    for (const Json& row : table.value("turned", Json::array()))
      turned_.insert(row[0]);
  }

  bool has_module_names() {
    return kind() == HfNames::kModule ||
           std::ranges::any_of(catalog_.tensors, [&](const Tensor& tensor) {
             const std::string text = numbered(tensor.name).text;
             return stack_of(text) != nullptr ||
                    (turned_.contains(text) &&
                     is_turned(tensor) == std::optional(false));
           });
  }

  void take(HfNames wanted) {
    const HfNames from = kind();
    std::vector<Tensor> tensors = std::move(catalog_.tensors);
    catalog_.tensors.clear();
    for (Tensor& tensor : tensors)
      if (tensor.kind == Kind::model) note(tensor);
    for (Tensor& tensor : tensors) {
      const Numbered made =
          numbered(tensor.kind == Kind::optim ? tensor.param : tensor.name);
      if (tensor.kind == Kind::model)
        take_model(tensor, made, from, wanted);
      else
        take_other(tensor, made, from, wanted);
    }
    check_unique();
    catalog_.skeleton.reset();  // its nesting is that of the other names
  }

 private:
  HfNames kind() const {
    std::optional<HfNames> kind;
    const Tensor* first = nullptr;
    for (const Tensor& tensor : catalog_.tensors) {
      if (tensor.kind != Kind::model) continue;
      const auto one = renames_.kind_of(numbered(tensor.name).text);
      if (!one) continue;
      if (kind && *kind != *one)
        throw unfaithful_error(
            {catalog_.path, printable(tensor.name)},
            "is a name of another kind than {}: one is the module's, the "
            "other the Hub's",
            printable(first->name));
      kind = one;
      first = &tensor;
    }
    return kind.value_or(HfNames::kHub);
  }

  void note(const Tensor& tensor) {
    by_name_.emplace(tensor.name, &tensor);
    Numbered made = numbered(tensor.name);
    for (const Stack& stack : stacks_)
      if (made.text == stack.parts[0]) {
        made.numbers.pop_back();
        ++experts_[filled(stack.module, made.numbers)];
        return;
      }
  }

  // Both ways at once would be two tensors of one name.
  void check_unique() const {
    std::set<std::string_view> names;
    for (const Tensor& tensor : catalog_.tensors)
      if (!names.insert(tensor.name).second)
        throw unfaithful_error({catalog_.path, printable(tensor.name)},
                               "is there in both of transformers' ways")
            .with_hint("--exclude leaves one of them out");
  }

  const Stack* stack_of(const std::string& text) const {
    const auto found = std::ranges::find(stacks_, text, &Stack::module);
    return found == stacks_.end() ? nullptr : &*found;
  }

  bool is_part(const std::string& text) const {
    return std::ranges::any_of(stacks_, [&](const Stack& stack) {
      return std::ranges::count(stack.parts, text) > 0;
    });
  }

  // Scales and biases of experts, which no row has.
  bool is_of_experts(const std::string& text) const {
    return std::ranges::any_of(stacks_, [&](const Stack& stack) {
      const auto folder = [](std::string_view part) {
        return part.substr(0, part.rfind("{}") + 2);
      };
      return text.starts_with(stack.module) ||
             text.starts_with(folder(stack.parts[0]));
    });
  }

  // State of the optimizer and the like goes with its parameter, if that keeps
  // its name.
  void take_other(Tensor& tensor, const Numbered& made, HfNames from,
                  HfNames wanted) {
    const bool cut = stack_of(made.text) || is_part(made.text) ||
                     turned_.contains(made.text);
    if (tensor.kind == Kind::optim &&
        (cut ||
         (from != wanted && renames_.other(made.text, from) != made.text)))
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "is state of a parameter that gets another name")
          .with_hint("--model-only leaves the optimizer out");
    catalog_.tensors.push_back(std::move(tensor));
  }

  void take_model(Tensor& tensor, const Numbered& made, HfNames from,
                  HfNames wanted) {
    if (const Stack* stack = stack_of(made.text)) {
      if (wanted == HfNames::kHub)
        cut(tensor, *stack, made.numbers);
      else
        catalog_.tensors.push_back(std::move(tensor));
      return;
    }
    if (is_part(made.text)) {
      if (wanted == HfNames::kModule)
        join(tensor, made);
      else
        catalog_.tensors.push_back(std::move(tensor));
      return;
    }
    if (turned_.contains(made.text)) return turn(tensor, wanted);
    if (is_of_experts(made.text) || !renames_.knows(made.text))
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "nothing says how transformers names it in the "
                             "other of its two ways")
          .with_hint(
              "leave --names out, or the tensor: --exclude; --dtype bf16 "
              "dequantizes first, in a run of its own");
    if (from != wanted)
      tensor.name = filled(renames_.other(made.text, from), made.numbers);
    catalog_.tensors.push_back(std::move(tensor));
  }

  // [experts, parts * rows, columns] -> [rows, columns] each.
  void cut(const Tensor& tensor, const Stack& stack,
           const std::vector<std::string>& numbers) {
    const size_t parts = stack.parts.size();
    if (tensor.shape.size() != 3 || tensor.shape[1] % parts != 0)
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "is {}, expected [experts, {} * rows, columns]",
                             to_string(tensor.shape), parts);
    const View whole = View::of(tensor);
    const uint64_t rows = tensor.shape[1] / parts;
    for (uint64_t expert = 0; expert < tensor.shape[0]; ++expert)
      for (size_t part = 0; part < parts; ++part) {
        Tensor one;
        one.kind = tensor.kind;
        one.requires_grad = tensor.requires_grad;
        std::vector<std::string> mine = numbers;
        mine.push_back(std::to_string(expert));
        one.name = filled(stack.parts[part], mine);
        whole.slice(0, expert, 1)
            .slice(1, part * rows, rows)
            .reshape({rows, tensor.shape[2]})
            .into(one);
        catalog_.tensors.push_back(std::move(one));
      }
  }

  // All experts at the place of the first one's first part.
  void join(const Tensor& tensor, const Numbered& made) {
    const auto stack = std::ranges::find_if(stacks_, [&](const Stack& one) {
      return std::ranges::count(one.parts, made.text) > 0;
    });
    std::vector<std::string> numbers = made.numbers;
    numbers.pop_back();
    const std::string name = filled(stack->module, numbers);
    if (!joined_.insert(name).second) return;
    std::vector<View> experts;
    for (size_t expert = 0;; ++expert) {
      numbers.push_back(std::to_string(expert));
      std::vector<View> parts;
      for (const std::string& part : stack->parts) {
        const auto found = by_name_.find(filled(part, numbers));
        if (found != by_name_.end()) parts.push_back(matrix(*found->second));
      }
      numbers.pop_back();
      if (parts.empty()) break;
      if (parts.size() != stack->parts.size())
        throw unfaithful_error({catalog_.path, printable(tensor.name)},
                               "a part of expert {} is missing beside it",
                               expert);
      experts.push_back(View::concat(parts, 1));
    }
    check_count(tensor, name, experts.size());
    Tensor whole;
    whole.name = name;
    whole.kind = Kind::model;
    whole.requires_grad = tensor.requires_grad;
    View::concat(experts, 0).into(whole);
    catalog_.tensors.push_back(std::move(whole));
  }

  View matrix(const Tensor& tensor) const {
    if (tensor.shape.size() != 2)
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "is {}, expected a matrix",
                             to_string(tensor.shape));
    return View::of(tensor).reshape({1, tensor.shape[0], tensor.shape[1]});
  }

  // A gap in the numbers would end the stack early.
  void check_count(const Tensor& tensor, const std::string& stack,
                   uint64_t found) const {
    const uint64_t there = experts_.at(stack);
    if (there != found)
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "of {} experts beside it, expert {} is missing",
                             there, found);
  }

  // True for [experts, in, out], as the Hub has it: nothing if the numbers of
  // config.json don't tell.
  std::optional<bool> is_turned(const Tensor& tensor) const {
    const Json text = config_.value("text_config", config_);
    const Json hidden = text.value("hidden_size", Json());
    if (tensor.shape.size() != 3 || !hidden.is_number_unsigned() ||
        tensor.shape[1] == tensor.shape[2])
      return std::nullopt;
    const bool up = tensor.name.ends_with("gate_up_proj");
    if (tensor.shape[1] == hidden) return up;
    if (tensor.shape[2] == hidden) return !up;
    return std::nullopt;
  }

  void turn(Tensor& tensor, HfNames wanted) {
    const auto turned = is_turned(tensor);
    if (!turned)
      throw unfaithful_error({catalog_.path, printable(tensor.name)},
                             "is {}: nothing says which dimension is the "
                             "experts' input",
                             to_string(tensor.shape));
    if (*turned != (wanted == HfNames::kHub)) {
      View::of(tensor).permute({0, 2, 1}).into(tensor);
      tensor.tp = {};
    }
    catalog_.tensors.push_back(std::move(tensor));
  }

  Catalog& catalog_;
  const Json& config_;
  const Renames renames_;
  std::vector<Stack> stacks_;
  std::set<std::string, std::less<>> turned_;
  std::map<std::string, const Tensor*, std::less<>> by_name_;
  std::map<std::string, uint64_t, std::less<>> experts_;  // of each stack
  std::set<std::string, std::less<>> joined_;
};

}  // namespace

bool has_module_names(const Catalog& catalog, const Json& config) {
  const Json* table = table_of(config);
  if (!table || table->size() == 1) return false;
  Catalog names;  // no piece is copied
  names.path = catalog.path;
  for (const Tensor& tensor : catalog.tensors) {
    Tensor& one = names.tensors.emplace_back();
    one.name = tensor.name;
    one.kind = tensor.kind;
    one.shape = tensor.shape;
  }
  try {
    return Taking(names, config, *table).has_module_names();
  } catch (const Error&) {  // of both kinds
    return false;
  }
}

std::string hub_name(const std::string& name, const Json& config) {
  const Json* table = table_of(config);
  if (!table || table->size() == 1) return name;
  const Numbered made = numbered(name);
  return filled(Renames(*table).other(made.text, HfNames::kModule),
                made.numbers);
}

static const Json& facts_of_classes() {
  static const Json all = Json::parse(embedded_text("hf_words"));
  return all;
}

bool has_uneven_layers(const Json& config) {
  const auto type =
      config.is_object() ? config.find("model_type") : config.end();
  return type != config.end() &&
         std::ranges::count(facts_of_classes().at("uneven"), *type) > 0;
}

std::vector<std::string> first_words(const Json& config) {
  const Json classes =
      config.is_object() ? config.value("architectures", Json()) : Json();
  if (!classes.is_array() || classes.empty() || config.contains("auto_map"))
    return {};
  for (const Json& row : facts_of_classes().at("words"))
    if (std::ranges::count(row.at("classes"), classes[0]) > 0)
      return row.at("first");
  return {};
}

void take_hf_names(Catalog& catalog, const Json& config, HfNames wanted) {
  const Json* table = table_of(config);
  if (!table) {
    const Json classes =
        config.is_object() ? config.value("architectures", Json()) : Json();
    throw unfaithful_error(
        {catalog.path, {}}, "{}: its two ways of naming tensors are not known",
        classes.is_array() && !classes.empty()
            ? printable(classes[0].dump(-1, ' ', true,
                                        Json::error_handler_t::replace))
            : "config.json names no architecture")
        .with_hint("--rename brings names to others, one by one");
  }
  if (table->size() > 1) Taking(catalog, config, *table).take(wanted);
}

}  // namespace ckpt::families
