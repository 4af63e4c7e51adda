// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/quantized.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/quantized/config.h"
#include "convert/quantized/dequantize.h"
#include "lib/decoding.h"
#include "lib/text/words.h"
#include "models/family.h"
#include "models/own.h"

namespace ckpt::families {
namespace {

// The ending of a weight's name, and the one its scale has instead.
struct Row {
  std::string_view weight, scale;
};
constexpr Row kRows[] = {
    {"weight", "weight_scale_inv"},  // DeepSeek
    {"weight", "weight_scale"},      // compressed-tensors, ModelOpt
    {"weight", "weight_scale_2"},
    {"weight", "scales"},
    {"weight", "scale"},
    {"weight", "SCB"},            // bitsandbytes, eight bits
    {"weight", "weight.absmax"},  // four bits
    {"qweight", "scales"},        // GPTQ, AWQ
    {"qweight", "qzeros"},
    {"weight_packed", "weight_scale"},
    {"_blocks", "_scales"},  // MXFP4
    {"", "_scale_inv"},
    {"", "_scale"},
};

// True for a dtype that no weight is trained in.
bool is_code(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::c32:
    case DType::c64:
    case DType::c128:
    case DType::bool_:
    case DType::i64:
      return false;
    default:
      return true;
  }
}

// What identifies a pinned parameter in every dialect:
// ".e_score_correction_bias" of "model.layers.{l}.mlp.gate.…", which vLLM has
// below mlp.experts. For a weight or a bias, includes the module's name.
std::string ending_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view last = name.substr(dot + 1);
  if (dot == name.npos) return std::string(name);
  if (last != "weight" && last != "bias") return std::string(name.substr(dot));
  return std::string(name.substr(name.rfind("}.") + 1));
}

// True if a rule of the file may have a dtype. Reading each family to find out
// would take longer than a small model does.
bool may_pin(std::string_view text) {
  constexpr std::string_view kKey = "\"dtype\"";
  for (size_t at = 0; (at = text.find(kKey, at)) != text.npos;) {
    at = text.find_first_not_of(" \n:", at + kKey.size());
    if (at != text.npos && !text.substr(at).starts_with("\"\"")) return true;
  }
  return false;
}

// Endings of what a family pins by its rules or those of one that it extends.
const std::set<std::string>& pinned_endings() {
  static const std::set<std::string> all = [] {
    std::set<std::string> endings;
    const std::vector<std::string> names = Family::names();
    for (const Embedded& file : files()) {
      const std::string name(file.name);
      if (!may_pin(file.text) || !std::ranges::binary_search(names, name))
        continue;
      const auto family = Family::by_name(name);
      for (const Dialect& dialect : family->dialects())
        for (const Rule& rule : dialect.rules) {
          if (!rule.dtype) continue;
          endings.insert(ending_of(rule.to));
          for (const std::string& hf : rule.hf) endings.insert(ending_of(hf));
        }
    }
    return endings;
  }();
  return all;
}

bool is_pinned(std::string_view name) {
  return std::ranges::any_of(pinned_endings(), [&](const std::string& ending) {
    return name.ends_with(ending);
  });
}

bool is_scale(std::string_view name) {
  constexpr std::string_view kEndings =
      "_scale_inv weight_scale weight_scale_2 input_scale k_scale v_scale "
      "q_scale prob_scale _scales";
  return text::ends_with_any(name, kEndings);
}

// Codes made on the way (--quantize) are not any source's.
bool is_made(const Catalog& catalog, const Tensor& tensor) {
  return !tensor.pieces.empty() &&
         is_decoded(catalog.files.at(tensor.pieces.front().extent.file));
}

// Positions, masks and counts are whole numbers, too.
bool is_counted(std::string_view name) {
  constexpr std::string_view kOthers[] = {"bias", "mask", "index",  "_ids",
                                          "_map", "_idx", "tokens", "_tracked"};
  return std::ranges::any_of(
      kOthers, [&](std::string_view end) { return name.ends_with(end); });
}

// GPTQModel packs into i64 as well; other tensors of that dtype are positions.
// Under a configuration that no rule explains (`hindered`) whatever may be a
// code is one: SpQR's are vectors.
bool may_be_unknown_codes(const Tensor& tensor, bool hindered) {
  const std::string_view name = tensor.name;
  if (hindered && (is_code(tensor.dtype) || tensor.dtype == DType::i64))
    return !is_counted(name);
  if (tensor.dtype == DType::i64)
    return name.ends_with("qweight") || name.ends_with("qzeros");
  // Masks of GPT-2 and the like are bytes.
  return is_code(tensor.dtype) && tensor.shape.size() > 1 &&
         !name.ends_with(".bias");
}

// Whole numbers in two dimensions or more, which masks and positions are, too.
bool looks_like_codes(const Tensor& tensor) {
  return tensor.shape.size() > 1 && is_code(tensor.dtype) &&
         !is_counted(tensor.name);
}

// Whose parameter it is: "a" of a.weight, a.weight._data and a.qweight.
std::string_view unit_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return {};
  std::string_view module = name.substr(0, dot);
  if (module.ends_with(".weight")) module.remove_suffix(7);
  return module;
}

bool may_scale(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 ||
         dtype == DType::bf16;
}

// The floats of each module, but for what any layer may have beside a weight.
std::unordered_map<std::string_view, std::vector<const Tensor*>>
floats_by_module(const Catalog& catalog) {
  std::unordered_map<std::string_view, std::vector<const Tensor*>> floats;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind != Kind::optim && may_scale(tensor.dtype) &&
        !tensor.name.ends_with("bias") && !is_cache_scale(tensor.name))
      if (const std::string_view module = unit_name(tensor.name);
          !module.empty())
        floats[module].push_back(&tensor);
  return floats;
}

// Floats of eight bits are cast like others where nothing scales them, as Flux
// and torch's .to() have them. Weights beside them that had a scale say that
// they are codes; a scale of their own does, too (quantized_weights).
void check_plain_floats(const Catalog& catalog, DType dtype) {
  const auto is_plain = [&](const Tensor& tensor) {
    return is_small_float(tensor.dtype) && tensor.dtype != dtype &&
           !tensor.pinned && tensor.kind != Kind::optim &&
           !is_made(catalog, tensor);
  };
  const auto first = std::ranges::find_if(catalog.tensors, is_plain);
  if (first == catalog.tensors.end()) return;
  // Losses are counted in wider floats alone (reshard/numbers/cast_loss.h).
  if (is_small_float(dtype))
    throw unfaithful_error({catalog.path, first->name},
                           "--dtype {}: from {} a cast would lose values "
                           "uncounted",
                           name(dtype), name(first->dtype))
        .with_hint("write bf16, which holds all of them, then cast that");
  const auto scaled =
      std::ranges::find_if(catalog.tensors, [&](const Tensor& tensor) {
        return is_made(catalog, tensor);  // of codes and scales
      });
  if (scaled != catalog.tensors.end())
    throw unfaithful_error(
        {catalog.path, first->name},
        "--dtype {}: {} {} without a scale, which other weights have: {}",
        name(dtype), name(first->dtype), to_string(first->shape), scaled->name)
        .with_hint(
            "docs/quantized.md lists what is known; without --dtype codes and "
            "scales are kept as they are");
}

}  // namespace

// self_attn.k_scale (compressed-tensors), self_attn.k_proj.k_scale (ModelOpt),
// self_attn.kv_scale (AutoFP8)
bool is_cache_scale(std::string_view name) {
  constexpr std::string_view kWords =
      "k_scale v_scale kv_scale q_scale prob_scale k_zero_point v_zero_point "
      "q_zero_point";
  const size_t dot = name.rfind('.');
  return dot != name.npos && text::has_word(kWords, name.substr(dot + 1));
}

bool is_small_float(DType dtype) {
  return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 ||
         dtype == DType::f8_e4m3fnuz || dtype == DType::f8_e5m2fnuz;
}

std::vector<QuantizedWeight> quantized_weights(const Catalog& catalog) {
  std::unordered_set<std::string_view> names;
  bool any = false;
  for (const Tensor& tensor : catalog.tensors) {
    names.insert(tensor.name);
    any = any || is_code(tensor.dtype);
  }
  std::vector<QuantizedWeight> found;
  if (!any) return found;
  // A tensor class with an archive of its own is carried as a whole.
  std::unordered_set<std::string_view> archives;
  for (const Object& object : catalog.objects)
    if (object.bytes != 0) archives.insert(object.name);
  const auto is_carried = [&](std::string_view name) {
    while (!name.empty() && !archives.contains(name)) {
      const size_t dot = name.rfind('.');
      name = dot == name.npos ? std::string_view() : name.substr(0, dot);
    }
    return !name.empty();
  };
  const auto floats = floats_by_module(catalog);
  for (const Tensor& tensor : catalog.tensors) {
    // bitsandbytes may view its bytes as floats.
    const bool viewed =
        !is_code(tensor.dtype) && names.contains(tensor.name + ".absmax");
    if (tensor.kind == Kind::optim || (!is_code(tensor.dtype) && !viewed) ||
        is_made(catalog, tensor))
      continue;
    QuantizedWeight weight{tensor.name, tensor.dtype, {}};
    for (const Row& row : kRows) {
      if (!tensor.name.ends_with(row.weight)) continue;
      std::string scale =
          tensor.name.substr(0, tensor.name.size() - row.weight.size());
      scale += row.scale;
      if (names.contains(scale)) weight.scales.push_back(std::move(scale));
    }
    if (weight.scales.empty() && looks_like_codes(tensor) &&
        !is_carried(tensor.name))
      if (const auto beside = floats.find(unit_name(tensor.name));
          beside != floats.end())
        for (const Tensor* one : beside->second)
          if (!is_small_float(tensor.dtype) ||
              one->name.find("scale", unit_name(one->name).size()) !=
                  std::string::npos)
            weight.scales.push_back(one->name);
    if (!weight.scales.empty()) found.push_back(std::move(weight));
  }
  return found;
}

std::string kind_of(const QuantizedWeight& weight, const Catalog& catalog) {
  struct Kind {
    std::string_view word, name;
  };
  constexpr Kind kKinds[] = {{"W_q", "HQQ"},
                             {"codebooks", "AQLM"},
                             {"trellis", "EXL3"},
                             {"q_weight", "EXL2"},
                             {"wscales", "nunchaku"},
                             {"weights_scaling_factor", "TensorRT-LLM"},
                             {"weight_scales", "EETQ"},
                             {"._data", "quanto"},
                             {"SCB", "bitsandbytes"},
                             {"qdata", "torchao"},
                             {"absmax", "bitsandbytes"}};
  try {
    if (const std::string method = quantization_config(catalog).method;
        !method.empty())
      return method;
  } catch (const Error&) {
    // By the names, then.
  }
  for (const Kind& kind : kKinds) {
    const auto has = [&](const std::string& name) {
      return name.find(kind.word) != std::string::npos;
    };
    if (has(weight.name) || std::ranges::any_of(weight.scales, has))
      return std::string(kind.name);
  }
  return std::string(name(weight.dtype));
}

std::string dequantize_hint(const Catalog& catalog) {
  std::string kind = "this kind";
  try {
    std::unordered_set<std::string> parts;
    std::string open;
    for (const LogicalWeight& weight : logical_weights(catalog, true)) {
      if (open.empty()) open = weight.open;
      parts.insert(weight.parts.begin(), weight.parts.end());
    }
    if (const QuantizationConfig config = quantization_config(catalog);
        open.empty())
      open = config.hindrance;
    for (const QuantizedWeight& weight : quantized_weights(catalog))
      if (!parts.contains(weight.name)) {
        kind = kind_of(weight, catalog);
        open = "no rule";
      }
    if (open.empty()) return "--dtype bf16 dequantizes them on the way";
  } catch (const Error&) {
    // --dtype would say why.
  }
  return "ckpt has no rule that makes numbers of " + kind +
         "; dequantize with the library that wrote them, then convert the "
         "result";
}

std::string describe(const std::vector<QuantizedWeight>& weights) {
  const QuantizedWeight& first = weights.front();
  std::string text = fmt::format("{} ({} with {})", first.name,
                                 name(first.dtype), first.scales.front());
  if (weights.size() > 1)
    text += fmt::format(" and {} more", weights.size() - 1);
  return text;
}

void check_scales(const std::vector<QuantizedWeight>& weights,
                  const Catalog& catalog) {
  if (weights.empty()) return;
  std::unordered_set<std::string_view> kept;
  for (const Tensor& tensor : catalog.tensors) kept.insert(tensor.name);
  for (const QuantizedWeight& weight : weights)
    for (const std::string& scale : weight.scales)
      if (kept.contains(weight.name) && !kept.contains(scale))
        throw unfaithful_error(
            {catalog.path, weight.name},
            "is {} codes, and what makes numbers of them is left out: {}",
            name(weight.dtype), scale)
            .with_hint("leave out both of them or none");
}

void check_together(const std::vector<QuantizedWeight>& before,
                    const Catalog& catalog) {
  const auto scales = [](const std::vector<QuantizedWeight>& weights) {
    size_t sum = 0;
    for (const QuantizedWeight& weight : weights) sum += weight.scales.size();
    return sum;
  };
  const std::vector<QuantizedWeight> after = quantized_weights(catalog);
  if (after.size() == before.size() && scales(after) == scales(before)) return;
  throw unfaithful_error(
      {catalog.path, before.front().name},
      "--rename parts codes from what makes numbers of them: "
      "{} of {} weights have their scales by name",
      after.size(), before.size())
      .with_hint("rename the scales as their codes, or --dtype bf16 first");
}

// Scales and the like whose codes are gone or have another name.
static void check_orphans(const Catalog& catalog) {
  constexpr std::string_view kEndings =
      "_scale_inv weight_scale weight_scale_2 global_scale weight_zero_point "
      "weight_packed weight_shape weight_g_idx .qweight .qzeros .scales "
      ".biases .g_idx .SCB .absmax .quant_map .nested_absmax "
      ".nested_quant_map ._scale ._shift .comfy_quant .scale_weight "
      ".weight_format";
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind != Kind::optim && !is_made(catalog, tensor) &&
        (tensor.name.find(".quant_state.bitsandbytes") != std::string::npos ||
         text::ends_with_any(tensor.name, kEndings)))
      throw unfaithful_error(
          {catalog.path, tensor.name},
          "--dtype: it belongs to the codes of a weight, and no codes are "
          "there that it fits")
          .with_hint(
              "a tensor is lost or has another name; without --dtype all are "
              "kept as they are");
}

void check_unknown_codes(const Catalog& catalog,
                         const QuantizationConfig& config) {
  const std::string& method = config.method;
  const bool hindered = !config.hindrance.empty();
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind != Kind::optim && may_be_unknown_codes(tensor, hindered) &&
        !is_made(catalog, tensor))
      throw unfaithful_error(
          {catalog.path, tensor.name},
          "--dtype: {} {} by quantization_config ({}), and no rule makes "
          "numbers of them",
          name(tensor.dtype), to_string(tensor.shape),
          method.empty() ? "without a quant_method" : method)
          .with_hint(
              "docs/quantized.md lists what is known; without --dtype codes "
              "and scales are kept as they are");
  check_orphans(catalog);
}

void check_activation_scales(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.name.ends_with("pre_quant_scale") ||
        tensor.name.ends_with(".act.scales"))
      throw unfaithful_error(
          {catalog.path, tensor.name},
          "scales activations: without it the model computes "
          "something else, whatever its weights are")
          .with_hint("without --dtype all of it is kept as it is");
}

void drop_cache_scales(Catalog& catalog) {
  const auto gone = std::stable_partition(
      catalog.tensors.begin(), catalog.tensors.end(), [](const Tensor& tensor) {
        return tensor.kind == Kind::optim || !is_cache_scale(tensor.name);
      });
  if (gone == catalog.tensors.end()) return;
  catalog.problems.push_back(warning(
      "kv_cache_scales", {catalog.path, gone->name},
      "it scales an fp8 cache of keys and values, which the model no longer "
      "has without quantization_config: {} such tensors are left out",
      catalog.tensors.end() - gone));
  catalog.tensors.erase(gone, catalog.tensors.end());
}

void prepare_cast(Catalog& catalog, DType dtype) {
  const std::vector<QuantizedWeight> weights = quantized_weights(catalog);
  if (!weights.empty())
    throw unfaithful_error({catalog.path, weights.front().name},
                           "--dtype {}: {} weights are quantized, and their "
                           "codes are not numbers to be cast: {}",
                           name(dtype), weights.size(), describe(weights))
        .with_hint(
            "this way of quantizing is not known: docs/quantized.md lists "
            "those "
            "that are; without --dtype weights and scales are kept as they "
            "are");
  if (const QuantizationConfig config = quantization_config(catalog);
      config.there)
    check_unknown_codes(catalog, config);
  check_plain_floats(catalog, dtype);
  for (Tensor& tensor : catalog.tensors)
    if (!tensor.pinned && tensor.kind != Kind::optim &&
        (is_pinned(tensor.name) || is_scale(tensor.name)))
      tensor.pinned = tensor.dtype;
}

}  // namespace ckpt::families
