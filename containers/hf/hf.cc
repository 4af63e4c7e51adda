// SPDX-License-Identifier: Apache-2.0
#include "containers/hf/hf.h"

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "lib/text/json.h"
#include "lib/text/words.h"

namespace ckpt::formats {
namespace {

constexpr uint64_t kMaxConfig = 64 << 20;

// Files that models on the hub have beside their weights. Not listed: weights,
// indexes of weights, and files about a training run. *.py is remote code, of
// which one file imports the others.
constexpr std::string_view kSidecars =
    "config.json generation_config.json adapter_config.json quant_config.json "
    "quantize_config.json quantization_config.json hf_quant_config.json "
    "quanto_qmap.json *processor_config.json feature_extractor*.json "
    "modules.json sentence_*_config.json config_sentence_transformers.json "
    "params.json tokenizer* special_tokens_map.json added_tokens.json vocab.* "
    "merges.txt spiece.model *.model *.model.v[0-9]* *.tiktoken tekken.json "
    "chat_template* *.jinja *.py README.md LICENSE* NOTICE* USE_POLICY*";

// Names that transformers gives and no other dialect does.
constexpr std::string_view kPrefixes =
    "model.layers. model.embed_tokens. model.language_model. "
    "language_model.model. transformer.h. transformer.wte. gpt_neox.layers. "
    "lm_head.";

const std::vector<text::Glob>& sidecar_globs() {
  static const std::vector<text::Glob> globs = [] {
    std::vector<text::Glob> all;
    text::any_word(kSidecars, [&](std::string_view glob) {
      all.emplace_back(std::string(glob));
      return false;
    });
    return all;
  }();
  return globs;
}

// Without it nobody knows what the tensors are.
bool explains_tensors(std::string_view name) {
  return name == kConfig || name == "adapter_config.json" ||
         name == "params.json" || name.find("quant") != name.npos;
}

bool has_hf_names(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [](const Tensor& tensor) {
    return text::starts_with_any(tensor.name, kPrefixes);
  });
}

// Mistral keeps its own names in consolidated files, beside a config.json that
// implies other names.
bool has_meta_names(const Catalog& catalog) {
  return catalog.find("tok_embeddings.weight") != nullptr;
}

}  // namespace

bool is_sidecar_name(std::string_view name) {
  return !name.starts_with('.') &&
         std::ranges::any_of(sidecar_globs(), [&](const text::Glob& glob) {
           return glob.matches(name);
         });
}

void add_sidecars(const std::string& directory, Catalog& catalog) {
  const std::vector<std::string> names = io::list_directory(directory);
  const bool has_config = std::ranges::find(names, kConfig) != names.end();
  for (const std::string& name : names) {
    const std::string path = io::join(directory, name);
    const bool alias = name == kForeignConfig && !has_config;
    if (!alias && !is_sidecar_name(name)) continue;
    if (!alias && !explains_tensors(name) && io::leads_nowhere(path)) continue;
    if (!io::is_file(path)) continue;
    catalog.sidecars.push_back(
        {alias ? kConfig : name, path, io::file_size(path).value_or(0)});
  }
}

void detect_dialect(const std::string& directory, Catalog& catalog) {
  const bool hf_names = has_hf_names(catalog);
  if (hf_names) catalog.dialect = "hf";
  const bool own = io::is_file(io::join(directory, kConfig));
  const std::string name = own ? kConfig : kForeignConfig;
  const std::string path = io::join(directory, name);
  if (!own && !io::is_file(path)) return;
  try {
    const auto config =
        text::parse_python_json(io::read_file(path, kMaxConfig), path);
    const auto type = config.find("model_type");
    const bool names_model =
        type != config.end() || config.contains("architectures");
    if (own && names_model && (hf_names || !has_meta_names(catalog)))
      catalog.dialect = "hf";
    if (catalog.family.empty() && type != config.end() && type->is_string()) {
      catalog.family = type->get<std::string>();
      catalog.assumptions.push_back("family " +
                                    text::printable(catalog.family) +
                                    ": model_type in " + name);
    }
  } catch (const Error& error) {
    if (error.code() == ExitCode::kResource || error.code() == ExitCode::kIo)
      throw;
    catalog.problems.push_back(
        warning("config_json", {path, {}}, "{}", error.problem()));
  }
}

namespace {

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "float64";
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    default:
      return {};
  }
}

// `key`: "\"dtype\"", with its quotes.
void replace_dtype(std::string& text, std::string_view key,
                   std::string_view with) {
  constexpr std::string_view kSpace = " \t\r\n";
  for (size_t at = 0; (at = text.find(key, at)) != text.npos;) {
    at += key.size();
    size_t next = text.find_first_not_of(kSpace, at);
    if (next == text.npos || text[next] != ':') continue;
    next = text.find_first_not_of(kSpace, next + 1);
    if (next == text.npos || text[next] != '"') continue;
    const size_t end = text.find('"', next + 1);
    if (end == text.npos) return;
    const std::string_view value =
        std::string_view(text).substr(next + 1, end - next - 1);
    for (const DType known : {DType::f64, DType::f32, DType::f16, DType::bf16})
      if (value == torch_name(known)) {
        text.replace(next + 1, value.size(), with);
        break;
      }
  }
}

void add_config(Catalog& catalog, std::string_view folder) {
  const std::string name = io::join(folder, "config.json");
  const bool has_one = std::ranges::any_of(
      catalog.sidecars,
      [&](const Sidecar& sidecar) { return sidecar.name == name; });
  const std::string path = io::join(catalog.path, name);
  if (has_one || !io::is_directory(catalog.path) || !io::is_file(path)) return;
  catalog.sidecars.push_back({name, path, io::file_size(path).value_or(0)});
}

}  // namespace

nlohmann::json config_json_of(const Catalog& catalog) {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == "config.json" && sidecar.size <= kMaxConfig)
      return text::parse_python_json(
          sidecar.text ? *sidecar.text
                       : io::read_file(sidecar.path, kMaxConfig),
          sidecar.path);
  const std::string beside = io::join(catalog.path, "config.json");
  if (!io::is_file(beside)) return nullptr;
  return text::parse_python_json(io::read_file(beside, kMaxConfig), beside);
}

void set_config_dtype(Catalog& catalog, DType dtype, bool beside) {
  const std::string_view with = torch_name(dtype);
  if (with.empty()) return;
  if (beside) add_config(catalog, {});
  if (catalog.run)
    for (const Component& component : catalog.run->components)
      add_config(catalog, component.folder);
  for (Sidecar& sidecar : catalog.sidecars) {
    if (io::base_name(sidecar.name) != "config.json" ||
        sidecar.size > kMaxConfig)
      continue;
    const std::string old =
        sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMaxConfig);
    std::string text = old;
    for (const std::string_view key : {"\"torch_dtype\"", "\"dtype\""})
      replace_dtype(text, key, with);
    if (text == old) continue;
    sidecar.path = "made:" + sidecar.name;
    sidecar.size = text.size();
    sidecar.text = std::make_shared<const std::string>(std::move(text));
    catalog.assumptions.push_back(
        fmt::format("{}: the dtype is {}, as --dtype says",
                    text::printable(sidecar.name), with));
  }
}

}  // namespace ckpt::formats
