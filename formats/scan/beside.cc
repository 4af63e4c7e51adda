// SPDX-License-Identifier: Apache-2.0
// Files that are no pickles, and whose loaders run code all the same:
// configurations, templates, Keras' layers, TorchScript.

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "formats/scan/configs.h"
#include "formats/scan/scanner.h"
#include "lib/io/file.h"
#include "lib/pickle/input.h"
#include "lib/text/json.h"
#include "lib/text/other_json.h"
#include "lib/tree_memory.h"

namespace ckpt::scan {
namespace {

// Limit for what is read as one text. A graph of torch.export is the largest.
constexpr uint64_t kMostText = uint64_t{64} << 20;
constexpr uint64_t kSearched = uint64_t{4} << 20;

// Words without which no rule for configurations can hold. A backslash may
// spell any of their letters.
bool may_call(std::string_view text) {
  constexpr std::string_view kWords[] = {
      "_target_", "_component_", "class_path",     "target",   "python/",
      "auto_map", "class_name",  "parent_library", "expr_str", "\"idx\"",
      "\\u00",    "\\x",         "chat_template",  "%TAG"};
  return std::ranges::any_of(kWords, [&](std::string_view word) {
    return text.find(word) != text.npos;
  });
}

nlohmann::json tree_of(const std::string& text, const std::string& path,
                       bool yaml) {
  if (yaml) return read_yaml(text, path);
  nlohmann::json tree = text::parse_or_discard(text);
  return tree.is_discarded() ? text::parse_python_json(text, path) : tree;
}

std::vector<std::string> modules_beside(const std::string& path) {
  std::vector<std::string> modules;
  try {
    for (const std::string& name : io::list_directory(io::parent(path)))
      if (name.ends_with(".py"))
        modules.push_back(name.substr(0, name.size() - 3));
  } catch (const Error&) {
    // The file is scanned by itself.
  }
  return modules;
}

// The metadata before a GGUF file's tensors: texts, numbers and lists.
class Gguf {
 public:
  explicit Gguf(const io::Handle& file)
      : file_(file), in_(file, 0, file.size(), UINT64_MAX) {}

  // Calls `see` with each text and its key.
  template <class See>
  void each_text(const See& see) {
    in_.take(8);  // the magic and the version
    in_.number<uint64_t>();
    const auto count = in_.number<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key = text();
      const auto type = in_.number<uint32_t>();
      if (type == kText)
        see(key, text());
      else
        skip(type);
    }
  }

 private:
  static constexpr uint32_t kText = 8;
  static constexpr uint32_t kList = 9;

  std::string text() {
    const auto size = in_.number<uint64_t>();
    if (size > std::min(in_.left(), kMostText))
      throw input_error({file_.path(), {}}, "a text of {} bytes", size);
    return std::string(in_.take(size));
  }

  void skip(uint32_t type) {
    if (type == kText) {
      text();
    } else if (type == kList) {
      const auto item = in_.number<uint32_t>();
      const auto count = in_.number<uint64_t>();
      if (item == kList)
        throw input_error({file_.path(), {}}, "lists of lists");
      if (item != kText && count > in_.left() / size_of(item))
        throw input_error({file_.path(), {}}, "a list of {} items", count);
      for (uint64_t i = 0; i < count; ++i) skip(item);
    } else {
      in_.take(size_of(type));
    }
  }

  uint64_t size_of(uint32_t type) const {
    constexpr std::array<uint8_t, 13> kSizes = {1, 1, 2, 2, 4, 4, 4,
                                                1, 0, 0, 8, 8, 8};
    if (type >= kSizes.size() || kSizes[type] == 0)
      throw input_error({file_.path(), {}}, "a value of type {}", type);
    return kSizes[type];
  }

  const io::Handle& file_;
  pickle::Input in_;
};

}  // namespace

void Scanner::beside(const io::Handle& file, const Part& part) {
  const std::string& whole = part.inside.empty() ? file.path() : part.inside;
  const std::string name = whole.substr(whole.rfind('/') + 1);
  const bool yaml = name.ends_with(".yaml") || name.ends_with(".yml");
  const bool script =
      whole.find("/code/") != whole.npos && name.ends_with(".py");
  try {
    if (yaml || name.ends_with(".json"))
      config(file, part, name, yaml);
    else if (name.ends_with(".jinja") || name.ends_with(".jinja2"))
      chat_template(text_of(file), {}, part);
    else if (!part.inside.empty() && (script || name == "bytecode.pkl"))
      torch_script(file, part);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    problem(part, error.problem());
  }
}

std::string Scanner::text_of(const io::Handle& file) {
  if (file.size() > std::min(kMostText, most_unpacked()))
    throw input_error({file.path(), {}},
                      "a text of {} bytes is too large to be followed",
                      file.size());
  return file.read_string(0, file.size());
}

void Scanner::config(const io::Handle& file, const Part& part,
                     const std::string& name, bool yaml) {
  // Read by tokenizers, never by what calls something.
  if (name == "tokenizer.json" || name == "vocab.json") return;
  const std::string text = text_of(file);
  if (!may_call(text)) return;
  tree_memory::Charge charge;
  charge.add(text.size());
  Surroundings around;
  around.keras = part.keras;
  around.nemo = name == "model_config.yaml";
  if (part.inside.empty() && text.find("auto_map") != text.npos)
    around.modules = modules_beside(file.path());
  const ConfigCalls found =
      look_into_config(tree_of(text, file.path(), yaml), around);
  for (const Call& call : found.calls) runs(call, part);
  if (!found.problem.empty()) problem(part, found.problem);
}

void Scanner::chat_template(const std::string& text, const std::string& where,
                            const Part& part) {
  const std::string out = reaching_out(text);
  if (!out.empty()) runs({"jinja2 without a sandbox", out, where}, part);
}

// The interpreter knows torch's operators alone; two of them write files.
void Scanner::torch_script(const io::Handle& file, const Part& part) {
  const std::string found = file_operator(text_of(file));
  if (!found.empty()) runs({"torch.jit.load", found, {}}, part);
}

void Scanner::gguf(const io::Handle& file, const Part& part) {
  try {
    Gguf(file).each_text([&](const std::string& key, const std::string& text) {
      if (key.starts_with("tokenizer.chat_template"))
        chat_template(text, key, part);
    });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    problem(part, "GGUF: " + error.problem());
  }
}

// Keras keeps a model's layers as JSON in an attribute, which no filter packs.
void Scanner::hdf5(const io::Handle& file, const Part& part) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  constexpr std::string_view kLambdas[] = {"\"__lambda__\"",
                                           "\"function_type\": \"lambda\"",
                                           "\"function_type\":\"lambda\""};
  constexpr uint64_t kOverlap = 64;
  for (uint64_t at = 0; at < std::min(file.size(), kMost); at += kSearched) {
    const std::string block =
        file.read_string(at, std::min(kSearched + kOverlap, file.size() - at));
    for (const std::string_view lambda : kLambdas) {
      if (block.find(lambda) == block.npos) continue;
      return runs({"keras.saving.load_model", "a lambda's bytecode", {}}, part);
    }
  }
}

void Scanner::runs(const Call& call, const Part& part) {
  known_ = true;
  Global global;
  global.mention.name = call.name;
  global.mention.uses = pickle::kImport;
  global.inside = part.inside;
  global.loader = call.loader;
  global.where = call.where;
  global.asked = call.asked;
  found_.globals.push_back(std::move(global));
}

}  // namespace ckpt::scan
