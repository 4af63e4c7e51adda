// SPDX-License-Identifier: Apache-2.0
#include "formats/peft/names.h"

#include <algorithm>
#include <vector>

#include "lib/io/file.h"
#include "lib/text/number.h"

namespace ckpt::peft {
namespace {

constexpr Dialect kDialects[] = {
    {"peft", "PEFT", Modules::kTransformers, false, false},
    {"diffusers", "diffusers", Modules::kAny, false, true},
    {"kohya", "kohya's sd-scripts", Modules::kFlat, false, true},
    {"mlx", "MLX", Modules::kTransformers, true, false},
    {"torchtune", "torchtune", Modules::kTorchtune, false, false},
    {"litgpt", "litgpt", Modules::kLitgpt, false, false},
    {"gguf", "llama.cpp", Modules::kGguf, false, false},
    {"bridge", "Megatron-Bridge", Modules::kMegatron, false, false},
    {"nemo", "NeMo", Modules::kMegatron, false, true},
};

// What follows a mark: nothing, or what PEFT puts there: "", ".weight",
// ".default.weight", ".bias".
enum class After : uint8_t { kNothing, kPeft };

struct Mark {
  std::string_view text;
  std::string_view dialect;
  Role role;
  After after = After::kNothing;
  std::string_view what = {};
};

constexpr std::string_view kTucker = "a core of LoHa's or LoKr's (Tucker)";
constexpr std::string_view kOft = "OFT, a rotation of the weight";

// The first that fits counts.
constexpr Mark kMarks[] = {
    {".lora_embedding_A", "peft", Role::kA, After::kPeft},
    {".lora_embedding_B", "peft", Role::kB, After::kPeft},
    {".lora_magnitude_vector", "peft", Role::kMagnitude, After::kPeft},
    {".lora_A", "peft", Role::kA, After::kPeft},
    {".lora_B", "peft", Role::kB, After::kPeft},
    {".lora_A", "litgpt", Role::kA},
    {".lora_B", "litgpt", Role::kB},
    {".lora_linear_layer.down.weight", "diffusers", Role::kA},
    {".lora_linear_layer.up.weight", "diffusers", Role::kB},
    {".lora.down.weight", "diffusers", Role::kA},
    {".lora.up.weight", "diffusers", Role::kB},
    {"_lora.down.weight", "diffusers", Role::kA},
    {"_lora.up.weight", "diffusers", Role::kB},
    {".lora_down.weight", "kohya", Role::kA},
    {".lora_up.weight", "kohya", Role::kB},
    {".alpha", "kohya", Role::kAlpha},
    {".dora_scale", "kohya", Role::kOther, After::kNothing,
     "DoRA as LyCORIS has it"},
    {".lora_mid.weight", "kohya", Role::kOther, After::kNothing,
     "a third factor (LoCon of LyCORIS)"},
    {".hada_w1_a", "peft", Role::kFactor, After::kPeft, "hada_w1_a"},
    {".hada_w1_b", "peft", Role::kFactor, After::kPeft, "hada_w1_b"},
    {".hada_w2_a", "peft", Role::kFactor, After::kPeft, "hada_w2_a"},
    {".hada_w2_b", "peft", Role::kFactor, After::kPeft, "hada_w2_b"},
    {".lokr_w1", "peft", Role::kFactor, After::kPeft, "lokr_w1"},
    {".lokr_w1_a", "peft", Role::kFactor, After::kPeft, "lokr_w1_a"},
    {".lokr_w1_b", "peft", Role::kFactor, After::kPeft, "lokr_w1_b"},
    {".lokr_w2", "peft", Role::kFactor, After::kPeft, "lokr_w2"},
    {".lokr_w2_a", "peft", Role::kFactor, After::kPeft, "lokr_w2_a"},
    {".lokr_w2_b", "peft", Role::kFactor, After::kPeft, "lokr_w2_b"},
    {".hada_t1", "peft", Role::kOther, After::kPeft, kTucker},
    {".hada_t2", "peft", Role::kOther, After::kPeft, kTucker},
    {".lokr_t2", "peft", Role::kOther, After::kPeft, kTucker},
    {".oft_blocks", "kohya", Role::kOther, After::kNothing, kOft},
    {".oft_diag", "kohya", Role::kOther, After::kNothing, kOft},
    {".lora_a.weight", "torchtune", Role::kA},
    {".lora_b.weight", "torchtune", Role::kB},
    {".magnitude", "torchtune", Role::kMagnitude},
    {".weight.lora_a", "gguf", Role::kA},
    {".weight.lora_b", "gguf", Role::kB},
    {".lora_a", "mlx", Role::kA},
    {".lora_b", "mlx", Role::kB},
    {".linear_in.weight", "bridge", Role::kA},
    {".linear_out.weight", "bridge", Role::kB},
};

// In the order in which they are taken: PEFT's beside torchtune's are the same
// factors.
constexpr std::string_view kFiles[] = {
    "adapter_model.safetensors", "adapter_model.bin",
    "adapters.safetensors",      "pytorch_lora_weights.safetensors",
    "pytorch_lora_weights.bin",  "adapter_model.pt",
    "lit_model.pth.lora"};

// NeMo 1's adapters, beside the modules that they change.
struct NemoRow {
  std::string_view nemo, bridge;
};
constexpr NemoRow kNemo[] = {
    {"lora_kqv_adapter", "linear_qkv.adapter"},
    {"lora_unfused_kqv_adapter.q_adapter", "linear_qkv.adapter.adapter_q"},
    {"lora_unfused_kqv_adapter.k_adapter", "linear_qkv.adapter.adapter_k"},
    {"lora_unfused_kqv_adapter.v_adapter", "linear_qkv.adapter.adapter_v"},
    {"lora_dense_attention_adapter", "linear_proj.adapter"},
    {"lora_hto4h_adapter", "linear_fc1.adapter"},
    {"lora_unfused_hto4h_adapter.gate_adapter",
     "linear_fc1.adapter.adapter_gate"},
    {"lora_unfused_hto4h_adapter.up_adapter", "linear_fc1.adapter.adapter_up"},
    {"lora_4htoh_adapter", "linear_fc2.adapter"},
};

// What scripts put before the modules of one model of several. kohya's joins
// them with '_'.
constexpr std::string_view kComponents[] = {"unet",
                                            "text_encoder_3",
                                            "text_encoder_2",
                                            "text_encoder",
                                            "transformer_2",
                                            "transformer",
                                            "diffusion_model",
                                            "prior",
                                            "te1",
                                            "te2",
                                            "te3",
                                            "te"};

constexpr std::string_view kAdapter = ".adapter";
constexpr std::string_view kKohya[] = {"lora_", "lycoris_"};

const Dialect& dialect_named(std::string_view name) {
  return *std::ranges::find(kDialects, name, &Dialect::name);
}

// "default" of "lora_A.default.weight"; false if PEFT writes no such name.
bool fits_peft(std::string_view rest, bool& live) {
  if (rest.empty()) return false;
  rest.remove_prefix(1);
  const size_t dot = rest.rfind('.');
  const std::string_view last = dot == rest.npos ? rest : rest.substr(dot + 1);
  const bool tensor = last == "weight" || last == "bias";
  live = tensor ? dot != rest.npos : true;
  const std::string_view name = tensor ? rest.substr(0, live ? dot : 0) : rest;
  return name.find('.') == name.npos;
}

bool fits(const Mark& mark, std::string_view name, size_t at, Part& part) {
  const std::string_view rest = name.substr(at + mark.text.size());
  if (mark.after == After::kNothing) return rest.empty();
  const bool bare = mark.text != ".lora_A" && mark.text != ".lora_B";
  if (rest.empty()) return bare;
  if (rest[0] != '.' || !fits_peft(rest, part.live)) return false;
  if (rest.ends_with(".bias") && mark.role == Role::kB) part.role = Role::kBias;
  return true;
}

// Takes the component from the front of `module`.
std::string take_component(std::string_view& module, char joint) {
  for (const std::string_view word : kComponents)
    if (module.size() > word.size() && module.starts_with(word) &&
        module[word.size()] == joint) {
      module.remove_prefix(word.size() + 1);
      return std::string(word);
    }
  return {};
}

// "attn1.processor.to_out" of attention processors is attn1.to_out.0
std::string of_processor(std::string module) {
  constexpr std::string_view kWord = ".processor.";
  const size_t at = module.rfind(kWord);
  if (at == module.npos) return module;
  module.replace(at, kWord.size(), ".");
  return module.ends_with(".to_out") ? module + ".0" : module;
}

// "….linear_qkv" of "….linear_qkv.adapter", "….linear_qkv.adapter.adapter_q".
std::string_view of_megatron(std::string_view module) {
  const size_t at = module.find(kAdapter);
  return module.substr(0, at == module.npos ? module.size() : at);
}

void place(std::string_view module, Part& part) {
  if (part.dialect->modules == Modules::kMegatron) {
    part.module = of_megatron(module);
    return;
  }
  for (const std::string_view prefix : kKohya)
    if (module.starts_with(prefix) && module.find('.') == module.npos) {
      module.remove_prefix(prefix.size());
      part.component = take_component(module, '_');
      part.dialect = &dialect_named("kohya");
      part.module = module;
      return;
    }
  const std::string_view inner = in_base_model(module);
  if (part.dialect->name == "peft" && inner.size() == module.size()) {
    part.component = take_component(module, '.');
    if (!part.component.empty()) part.dialect = &dialect_named("diffusers");
  } else if (part.dialect->modules == Modules::kFlat ||
             part.dialect->modules == Modules::kAny) {
    // kohya's factors under a model's own names.
    part.component = take_component(module, '.');
    part.dialect = &dialect_named("diffusers");
    part.module = of_processor(std::string(module));
    return;
  } else {
    module = inner;
    // litgpt's trainer saves {"model": …}.
    constexpr std::string_view kInside = "model.";
    if (part.dialect->modules == Modules::kLitgpt &&
        module.starts_with(kInside))
      module.remove_prefix(kInside.size());
  }
  part.module = module;
}

}  // namespace

std::string_view in_base_model(std::string_view name) {
  const size_t at = name.find(kPrefix);
  const bool first = at == 0 || (at != name.npos && name[at - 1] == '.');
  return first ? name.substr(at + kPrefix.size()) : name;
}

std::string file_in(const std::string& folder) {
  if (!io::is_directory(folder)) return {};
  for (const std::string_view name : kFiles)
    if (std::string at = io::join(folder, name); io::is_file(at)) return at;
  // torchtune's older files have the epoch's number.
  std::vector<std::string> numbered;
  for (const std::string& name : io::list_directory(folder)) {
    constexpr std::string_view kStem = "adapter_", kEnd = ".pt";
    if (name.size() > kStem.size() + kEnd.size() && name.starts_with(kStem) &&
        name.ends_with(kEnd) &&
        text::is_digits(std::string_view(name).substr(
            kStem.size(), name.size() - kStem.size() - kEnd.size())))
      numbered.push_back(io::join(folder, name));
  }
  return numbered.size() == 1 ? numbered[0] : std::string();
}

std::optional<std::string> bridge_name(std::string_view name) {
  constexpr std::string_view kLayer = "adapter_layer.";
  const size_t at = name.find(kLayer);
  if (at == name.npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kLayer.size());
  for (const NemoRow& row : kNemo)
    if (rest.starts_with(row.nemo) && rest.size() > row.nemo.size() &&
        rest[row.nemo.size()] == '.')
      return std::string(name.substr(0, at))
          .append(row.bridge)
          .append(rest.substr(row.nemo.size()));
  return std::nullopt;
}

std::optional<Part> part_of(std::string_view name) {
  // Of millions of names few get further.
  if (name.find("lora") == name.npos && name.find("adapter") == name.npos &&
      name.find("lycoris_") == name.npos && name.find("hada_") == name.npos &&
      name.find("lokr_") == name.npos && !name.ends_with(".alpha") &&
      !name.ends_with(".magnitude"))
    return std::nullopt;
  for (const Mark& mark : kMarks) {
    const size_t at = name.rfind(mark.text);
    if (at == name.npos || at == 0) continue;
    Part part{.dialect = &dialect_named(mark.dialect),
              .role = mark.role,
              .component = {},
              .module = {},
              .what = std::string(mark.what)};
    if (!fits(mark, name, at, part)) continue;
    part.embedding = mark.text.starts_with(".lora_embedding");
    std::string module(name.substr(0, at));
    if (mark.dialect == "bridge") {
      if (const auto bridge = bridge_name(name)) {
        part.dialect = &dialect_named("nemo");
        module = bridge->substr(0, bridge->rfind(mark.text));
      } else if (module.find(kAdapter) == module.npos) {
        continue;
      }
    }
    place(module, part);
    // Rows of it are looked up: its lora_a is [tokens, r].
    if (part.dialect->modules == Modules::kGguf && part.module == "token_embd")
      part.embedding = true;
    return part;
  }
  return std::nullopt;
}

const Dialect* dialect_of(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim) continue;
    const auto part = part_of(tensor.name);
    if (part && part->role != Role::kAlpha && part->role != Role::kMagnitude)
      return part->dialect;
  }
  return nullptr;
}

std::string without_saved(std::string name) {
  constexpr std::string_view kSaved = ".modules_to_save.";
  const size_t at = name.find(kSaved);
  if (at == name.npos) return name;
  const size_t dot = name.find('.', at + kSaved.size());
  return dot == name.npos ? name : name.erase(at, dot - at);
}

std::optional<std::string> without_wrap(std::string_view name) {
  for (const std::string_view word : {".base_layer.", ".to_wrap."}) {
    const size_t at = name.rfind(word);
    if (at == name.npos) continue;
    std::string whole(name.substr(0, at + 1));
    return whole.append(name.substr(at + word.size()));
  }
  return std::nullopt;
}

}  // namespace ckpt::peft
