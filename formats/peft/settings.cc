// SPDX-License-Identifier: Apache-2.0
#include "formats/peft/settings.h"

#include <algorithm>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "formats/fairseq2/model_yaml.h"
#include "formats/megatron/state/run_config.h"
#include "formats/peft/names.h"
#include "lib/io/file.h"
#include "lib/pickle/config.h"
#include "lib/small_tensor.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "lib/text/other_json.h"

namespace ckpt::peft {
namespace {

using Value = nlohmann::json;

constexpr uint64_t kMost = uint64_t{1} << 24;
constexpr size_t kMostTargets = 24;

std::string folder_of(const Catalog& catalog) {
  return io::is_directory(catalog.path) ? catalog.path
                                        : io::parent(catalog.path);
}

// A file of that name: carried by the catalog, or in the folder of what was
// opened, or of what was given.
struct Found {
  std::string path, text;
};
std::optional<Found> file_beside(const Catalog& catalog,
                                 std::string_view name) {
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == name)
      return Found{
          sidecar.text ? sidecar.name : sidecar.path,
          sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMost)};
  for (const std::string& folder : {folder_of(catalog), catalog.root}) {
    const std::string path = folder.empty() ? "" : io::join(folder, name);
    if (!path.empty() && io::is_file(path))
      return Found{path, io::read_file(path, kMost)};
  }
  return std::nullopt;
}

void take(const families::Config& from, std::string_view key, double& value,
          bool& said) {
  const auto found = from.find(key);
  if (found == from.end()) return;
  if (const auto* whole = std::get_if<int64_t>(&found->second))
    value = static_cast<double>(*whole), said = true;
  else if (const auto* real = std::get_if<double>(&found->second))
    value = *real, said = true;
}

void take_rank(const families::Config& from, std::string_view key,
               Config& config) {
  if (const auto rank = families::whole_number(from, key))
    config.rank = *rank, config.says_rank = true;
}

// {"fine_tune_type": "lora", "lora_parameters": {"rank": 8, "scale": 20.0}}:
// the scale is alpha / rank. In the first half of 2024 mlx_lm had an alpha
// beside the scale and multiplied them, and later ones leave it unread: which
// of the two is meant the file does not say.
void take_mlx(const std::string& text, const std::string& path,
              Config& config) {
  const Value root = text::parse_json(text, path);
  const auto at = root.is_object() ? root.find("lora_parameters") : root.end();
  config.unsaid = "adapter_config.json has no lora_parameters";
  if (at == root.end() || !at->is_object()) return;
  const auto rank = at->find("rank"), scale = at->find("scale");
  if (rank != at->end() && rank->is_number_unsigned())
    config.rank = rank->get<uint64_t>(), config.says_rank = true;
  const auto alpha = at->find("alpha");
  if (scale == at->end() || !scale->is_number()) {
    config.unsaid = "lora_parameters has no scale";
  } else if (alpha != at->end() && *alpha != Value(config.rank)) {
    config.unsaid = fmt::format(
        "lora_parameters has both scale {} and alpha {}, and mlx_lm's versions "
        "differ in whether they multiply",
        scale->dump(), alpha->dump().substr(0, 20));
  } else if (config.says_rank) {
    config.alpha = scale->get<double>() * static_cast<double>(config.rank);
    config.says_alpha = true;
  }
  const auto kind = root.find("fine_tune_type");
  if (kind != root.end() && kind->is_string() && *kind != "lora")
    config.hindrance = "fine_tune_type is " + kind->get<std::string>();
  const auto model = root.find("model");
  if (model != root.end() && model->is_string())
    config.base = model->get<std::string>();
}

// Texts of a safetensors header; an empty object without any.
Value header_of(const Catalog& catalog) {
  for (const Object& object : catalog.objects)
    if (object.name == "__metadata__" && object.document) {
      Value header = pickle::to_config(*object.document, object.node);
      if (header.is_object()) return header;
    }
  return Value::object();
}

std::string text_of(const Value& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

std::optional<double> number_of(const Value& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  if (!found->is_string()) return std::nullopt;
  const auto value = text::parse_or_discard<Value>(found->get<std::string>());
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

void take_kohya(const Value& header, Config& config) {
  config.base = text_of(header, "ss_base_model_version");
  if (config.base.empty())
    config.base = text_of(header, "modelspec.architecture");
  const auto rank = number_of(header, "ss_network_dim");
  if (rank && *rank > 0 && *rank < 1e9)
    config.rank = static_cast<uint64_t>(*rank), config.says_rank = true;
  if (const auto alpha = number_of(header, "ss_network_alpha"))
    config.alpha = *alpha, config.says_alpha = true;
}

// {"unet.r": 8, "unet.lora_alpha": 16, "unet.use_dora": false, …}, a text.
void take_diffusers(const Value& header, const std::string& path,
                    Config& config) {
  const std::string text = text_of(header, "lora_adapter_metadata");
  if (text.empty()) return take_kohya(header, config);
  const Value said = text::parse_json(text, path);
  if (!said.is_object()) return;
  std::map<std::string, Value> parts;
  for (const auto& [key, value] : said.items()) {
    const size_t dot = key.find('.');
    const bool whole = dot == key.npos;
    Value& part = parts[whole ? "" : key.substr(0, dot)];
    if (part.is_null()) part = Value::object();
    part[whole ? key : key.substr(dot + 1)] = value;
  }
  for (const auto& [component, part] : parts) {
    Value one = part;
    if (!one.contains("peft_type")) one["peft_type"] = "LORA";
    const Config own = parse_config(one.dump(), path);
    if (!own.hindrance.empty()) config.hindrance = own.hindrance;
    const bool same =
        !config.says_alpha ||
        (own.rank == config.rank && own.alpha == config.alpha &&
         own.ranks == config.ranks && own.alphas == config.alphas);
    if (!same)
      config.hindrance = "lora_adapter_metadata has several ranks or alphas";
    config.rank = own.rank;
    config.alpha = own.alpha;
    config.ranks = own.ranks;
    config.alphas = own.alphas;
    config.rslora |= own.rslora;
    config.dora |= own.dora;
    config.says_rank = config.says_alpha = true;
  }
}

// llama.cpp's keys. It scales by alpha / rank, as PEFT does.
void take_gguf(const Catalog& catalog, Config& config) {
  for (const Object& object : catalog.objects) {
    if (!object.document) continue;
    const pickle::Document& document = *object.document;
    if (object.name == "adapter.lora.alpha") {
      const auto alpha = document.as_real(object.node);
      if (alpha) config.alpha = *alpha, config.says_alpha = true;
    } else if (object.name == "general.base_model.0.name" &&
               document.is(object.node, pickle::Type::kString)) {
      config.base = document.text(object.node);
    }
  }
}

void take_yaml(const Catalog& catalog, const Dialect& dialect, Config& config) {
  const bool lit = dialect.name == "litgpt", nemo = dialect.name == "nemo";
  const auto file = file_beside(catalog, lit    ? "hyperparameters.yaml"
                                         : nemo ? "model_config.yaml"
                                                : "run_config.yaml");
  if (!file) return;
  const families::Config said = fairseq2::flat_yaml(file->path, file->text);
  config.path = file->path;
  take_rank(said,
            lit    ? "lora_r"
            : nemo ? "peft.lora_tuning.adapter_dim"
                   : "peft.dim",
            config);
  take(said,
       lit    ? "lora_alpha"
       : nemo ? "peft.lora_tuning.alpha"
              : "peft.alpha",
       config.alpha, config.says_alpha);
  if (lit)
    for (const auto& [key, part] :
         {std::pair{"lora_query", "q"}, std::pair{"lora_key", "k"},
          std::pair{"lora_value", "v"}}) {
      const auto found = said.find(key);
      if (found != said.end() && found->second == families::Scalar(true))
        config.parts.emplace_back(part);
    }
  // Bridge's classes of these names compute the same as PEFT's LoRA.
  const auto kind = said.find("peft._target_");
  if (kind != said.end()) {
    const std::string name = families::to_string(kind->second);
    if (!name.ends_with(".LoRA") && !name.ends_with(".CanonicalLoRA"))
      config.hindrance = fmt::format(
          "run_config.yaml says peft {}, and only LoRA and CanonicalLoRA are "
          "PEFT's LoRA",
          name);
  }
  bool drops = false;
  take(said, lit ? "lora_dropout" : "peft.dropout", config.dropout, drops);
  const auto base =
      said.find(lit ? "checkpoint_dir" : "checkpoint.pretrained_checkpoint");
  if (base != said.end()) config.base = families::to_string(base->second);
}

// "attn1_to_q" of "down_blocks_0_…_attn1_to_q"; "q_proj" of "….q_proj".
std::string target_of(const Part& part) {
  const std::string& module = part.module;
  if (part.dialect->modules != Modules::kFlat)
    return module.substr(module.rfind('.') + 1);
  size_t begin = 0;
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('_', at), module.size());
    const bool last = end == module.size();
    if (!last && text::number(std::string_view(module).substr(at, end - at)))
      begin = end + 1;
    at = end + 1;
  }
  return module.substr(begin);
}

// The first module's, if the header says none. False if no module has one.
bool take_alpha(const Catalog& catalog, Config& config) {
  for (const Tensor& tensor : catalog.tensors) {
    const auto part = part_of(tensor.name);
    if (!part || part->role != Role::kAlpha) continue;
    Catalog one = catalog;
    one.tensors = {tensor};
    locate(one);
    const auto alpha = small_number(one, one.tensors.front());
    if (alpha) config.alpha = *alpha, config.says_alpha = true;
    return true;
  }
  return false;
}

// What the factors show.
void take_factors(const Catalog& catalog, Config& config) {
  std::map<uint64_t, size_t> ranks;
  std::set<std::string> targets;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim || tensor.shape.size() < 2) continue;
    const auto part = part_of(tensor.name);
    if (!part) continue;
    if (part->role == Role::kOther && config.hindrance.empty())
      config.hindrance = "it has " + part->what;
    if (part->role == Role::kFactor) {
      config.type = part->what.starts_with("hada") ? "LOHA" : "LOKR";
      if (targets.size() < kMostTargets) targets.insert(target_of(*part));
      // [rank, in], of a matrix or of a convolution.
      if (part->what.ends_with("_b")) ++ranks[tensor.shape[0]];
    }
    if (part->role != Role::kA && part->role != Role::kB) continue;
    if (targets.size() < kMostTargets) targets.insert(target_of(*part));
    if (part->role != Role::kB) continue;
    const size_t axis = part->dialect->turned ? 0 : 1;
    const bool stacked = part->dialect->modules == Modules::kMegatron;
    ++ranks[stacked ? tensor.shape.back() : tensor.shape[axis]];
  }
  if (config.targets.empty())
    config.targets.assign(targets.begin(), targets.end());
  config.other_ranks = ranks.size() > 1;
  if (config.says_rank || ranks.empty()) return;
  config.rank = std::ranges::max_element(ranks, {}, [](const auto& item) {
                  return item.second;
                })->first;
  config.says_rank = true;
}

// PEFT's file, or one of another library that has its name.
void take_json(const Catalog& catalog, const Dialect& dialect, Config& config) {
  const auto file = file_beside(catalog, kConfigFile);
  if (!file) return;
  const Value root = text::parse_json(file->text, file->path);
  if (dialect.name == "mlx" && root.is_object() &&
      !root.contains("peft_type")) {
    config.path = file->path;
    return take_mlx(file->text, file->path, config);
  }
  const std::string type = config.type;
  config = parse_config(file->text, file->path);
  if (config.type.empty()) config.type = type;
  // peft has defaults for what its own file does not say.
  if (dialect.name == "peft" || !root.is_object()) return;
  config.says_rank = root.contains("r");
  config.says_alpha = root.contains("lora_alpha") || root.contains("alpha");
}

// PEFT's own file says of another kind what it is, whatever its tensors are
// called: IA3's and OFT's have no factors, and AdaLoRA's are called like
// litgpt's.
std::optional<Config> other_kind(const Catalog& catalog) {
  const auto is_weights = [](const File& file) {
    return io::base_name(file.path).starts_with("adapter_model.");
  };
  if (std::ranges::none_of(catalog.files, is_weights)) return std::nullopt;
  const auto file = file_beside(catalog, kConfigFile);
  if (!file) return std::nullopt;
  const Value root = text::parse_json(file->text, file->path);
  if (!root.is_object() || !root.contains("peft_type")) return std::nullopt;
  Config config = parse_config(file->text, file->path);
  if (config.type.empty() || is_sum(config.type)) return std::nullopt;
  return config;
}

}  // namespace

std::optional<Config> read_settings(const Catalog& catalog) {
  if (auto other = other_kind(catalog)) return other;
  const Dialect* dialect = dialect_of(catalog);
  if (dialect == nullptr) return std::nullopt;
  Config config{.path = catalog.path, .type = "LORA", .base = {}};
  config.says_rank = config.says_alpha = false;
  take_json(catalog, *dialect, config);
  config.dialect = dialect->name;
  config.owner = dialect->owner;
  if (!config.says_alpha) {
    const Value header = header_of(catalog);
    if (dialect->modules == Modules::kFlat)
      take_kohya(header, config);
    else if (dialect->modules == Modules::kAny)
      take_diffusers(header, catalog.path, config);
    else if (dialect->modules == Modules::kGguf)
      take_gguf(catalog, config);
    else
      take_yaml(catalog, *dialect, config);
  }
  take_factors(catalog, config);
  const bool own = !config.says_alpha && take_alpha(catalog, config);
  if (!config.says_alpha && !own && dialect->alpha_is_rank) {
    config.alpha = static_cast<double>(config.rank);
    config.says_alpha = config.alpha_is_rank = true;
  }
  return config;
}

std::optional<Config> config_of(const Catalog& catalog) {
  try {
    auto config = read_settings(catalog);
    const bool bare = config && config->dialect == "peft" &&
                      is_sum(config->type) && !config->says_alpha &&
                      config->base.empty();
    return bare ? std::nullopt : config;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace ckpt::peft
