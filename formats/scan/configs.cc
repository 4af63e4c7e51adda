// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/configs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace ckpt::scan {
namespace {

using nlohmann::json;

// Members that name what is called, and by whom.
struct CalledMember {
  std::string_view key;
  std::string_view loader;
};
constexpr CalledMember kTargets[] = {
    {"_target_", "hydra.utils.instantiate"},
    {"_component_", "torchtune.config.instantiate"},
    {"class_path", "LightningCLI"},
    {"target", "NeMo"},
};

// "a.b.c"
bool is_dotted(std::string_view text) {
  bool begins = true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c != '.' && c != '_' && !std::isalnum(byte)) return false;
    if (begins && (c == '.' || std::isdigit(byte))) return false;
    begins = c == '.';
  }
  return !begins && text.find('.') != text.npos;
}

const std::string* text_of(const json& object, std::string_view key) {
  const auto found = object.find(key);
  if (found == object.end()) return nullptr;
  return found->get_ptr<const std::string*>();
}

bool is_under(std::string_view path, std::string_view root) {
  return path == root || (path.starts_with(root) && path[root.size()] == '.');
}

class ConfigLook {
 public:
  explicit ConfigLook(const Surroundings& around) : around_(around) {}

  void value(const json& one, const std::string& where) {
    if (one.is_object()) {
      object(one, where);
      for (const auto& [key, member] : one.items())
        if (member.is_structured() || key == "chat_template")
          value_of(key, member, where);
    } else if (one.is_array()) {
      for (size_t i = 0; i < one.size(); ++i)
        if (one[i].is_structured())
          value(one[i],
                fmt::format("{}{}{}", where, where.empty() ? "" : ".", i));
    }
  }

  ConfigCalls take() { return std::move(found_); }

 private:
  void value_of(const std::string& key, const json& member,
                const std::string& where) {
    const std::string path = where.empty() ? key : where + "." + key;
    if (key == "auto_map") remote_code(member, path);
    if (key == "chat_template") templates(member, path);
    value(member, path);
  }

  void add(std::string_view loader, std::string name, std::string where,
           bool asked = false) {
    constexpr size_t kMost = 1000;
    if (found_.calls.size() < kMost)
      found_.calls.push_back(
          {std::string(loader), std::move(name), std::move(where), asked});
  }

  void object(const json& one, const std::string& where) {
    const std::string dot = where.empty() ? "" : where + ".";
    for (const CalledMember& target : kTargets)
      if (const std::string* path = text_of(one, target.key))
        called(one, target, *path, dot + std::string(target.key));
    if (const std::string* tag = text_of(one, "!!python"))
      add("yaml.unsafe_load", *tag, where);
    if (const std::string* module = text_of(one, "parent_library"))
      if (!is_framework_call(*module + ".x"))
        add("peft.AutoPeftModel", *module, dot + "parent_library");
    const std::string* type = text_of(one, "type");
    if (type && one.contains("idx") && one.contains("path") &&
        !type->starts_with("sentence_transformers."))
      add("sentence_transformers", *type, dot + "type");
    if (const std::string* expression = text_of(one, "expr_str"))
      if (!is_plain_expression(*expression))
        add("torch.export.load", *expression, dot + "expr_str");
    if (around_.keras) keras(one, dot);
  }

  void called(const json& one, const CalledMember& target,
              const std::string& path, const std::string& where) {
    const bool hydra = target.key[0] == '_';
    // A module's name in a model is dotted as well: target: model.layers.0
    if (!hydra && !is_dotted(path)) return;
    if (path.find("${") != path.npos) {
      found_.problem = where + ": what it names is computed";
      return;
    }
    const auto remote = one.find("trust_remote_code");
    const bool code = remote != one.end() && *remote != "false" &&
                      *remote != "False" && *remote != json(false) &&
                      !remote->is_null();
    if (is_framework_call(path)) {
      if (code) add(target.loader, path + " with trust_remote_code", where);
      return;
    }
    if (target.key == "target" && !one.contains("params") && !is_import(path))
      return;
    if (!path.empty()) add(target.loader, path, where);
  }

  // Of NeMo's configurations every target is called.
  bool is_import(const std::string& path) const {
    return around_.nemo || path.starts_with("os.") ||
           path.starts_with("subprocess.") || path.starts_with("builtins.");
  }

  // {"AutoModel": "modeling_x.Model", "AutoTokenizer": ["repo--x.T", null]}
  void remote_code(const json& member, const std::string& where) {
    const auto one = [&](const json& value) {
      const std::string* name = value.get_ptr<const std::string*>();
      if (!name) return;
      const std::string module = name->substr(0, name->find('.'));
      const bool there =
          name->find("--") != name->npos ||
          std::ranges::find(around_.modules, module) != around_.modules.end();
      if (there) add("transformers, trust_remote_code", *name, where, true);
    };
    if (!member.is_object()) return one(member);
    for (const auto& [key, value] : member.items()) {
      if (value.is_array())
        for (const json& item : value) one(item);
      else
        one(value);
    }
  }

  // A text, or [{"name": …, "template": text}], or {name: text}.
  void templates(const json& member, const std::string& where) {
    if (const std::string* text = member.get_ptr<const std::string*>()) {
      const std::string out = reaching_out(*text);
      if (!out.empty()) add("jinja2 without a sandbox", out, where);
      return;
    }
    if (member.is_structured())
      for (const auto& [key, value] : member.items())
        templates(value, where + "." + key);
  }

  // {"module": "keras.layers", "class_name": "Dense", "config": …}
  void keras(const json& one, const std::string& dot) {
    const std::string* name = text_of(one, "class_name");
    if (!name) return;
    if (*name == "__lambda__")
      return add("keras.saving.load_model", "a lambda's bytecode",
                 dot + "class_name");
    const std::string* module = text_of(one, "module");
    if (!module) return;
    const bool own = std::ranges::any_of(
        std::initializer_list<std::string_view>{"keras", "keras_cv",
                                                "keras_hub", "keras_nlp",
                                                "tensorflow.keras", "tf_keras"},
        [&](auto root) { return is_under(*module, root); });
    const bool type = *module == "builtins" && *name != "function";
    if (!own && !type)
      add("keras.saving.load_model", *module + "." + *name, dot + "module");
  }

  const Surroundings& around_;
  ConfigCalls found_;
};

}  // namespace

ConfigCalls look_into_config(const json& root, const Surroundings& around) {
  ConfigLook look(around);
  look.value(root, {});
  return look.take();
}

}  // namespace ckpt::scan
