// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/dialects.h"
#include "convert/quantized/config.h"
#include "convert/quantized/dequantize.h"
#include "convert/quantized/quantized.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kBlock = 128;

bool is_wide(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// The module that "….mlp.gate.weight" belongs to: "gate".
std::string_view module_of(std::string_view name) {
  name.remove_suffix(std::string_view(".weight").size());
  return name.substr(name.rfind('.') + 1);
}

// Looked up by rows, not multiplied: not a Linear. GPT-NeoX calls its head so;
// T5 has two of other names.
bool is_embedding(std::string_view name) {
  const std::string_view module = module_of(name);
  if (module == "embed_out") return false;
  if (module == "shared" || module == "relative_attention_bias") return true;
  for (const std::string_view word : {"embed", "wte", "wpe"})
    if (name.find(word) != name.npos) return true;
  return false;
}

// What DeepSeek and Qwen leave in bf16: heads, routers, gates of shared
// experts, the indexer's weights, the join of an MTP layer, towers.
bool stays(std::string_view name) {
  constexpr std::string_view kModules[] = {
      "lm_head",      "gate",    "router", "shared_expert_gate",
      "weights_proj", "eh_proj", "head",   "embed_out"};
  constexpr std::string_view kParts[] = {"norm",     "visual.",   "vision",
                                         "audio",    "projector", "conv1d",
                                         ".router.", ".gate."};
  const std::string_view module = module_of(name);
  return is_embedding(name) ||
         std::ranges::find(kModules, module) != std::end(kModules) ||
         std::ranges::any_of(kParts, [&](std::string_view part) {
           return name.find(part) != name.npos;
         });
}

// The text with one more member at its end.
std::string with_member(const std::string& text, const std::string& member) {
  const size_t end = text.rfind('}');
  const size_t last = end == text.npos || end == 0
                          ? text.npos
                          : text.find_last_not_of(" \t\r\n", end - 1);
  if (last == text.npos) return text;
  return text.substr(0, last + 1) + (text[last] == '{' ? "" : ",") + "\n  " +
         member + "\n" + text.substr(end);
}

std::string config_keeping(const std::set<std::string>& kept) {
  std::string names;
  for (const std::string& name : kept)
    names += (names.empty() ? "" : ", ") + nlohmann::json(name).dump();
  return fmt::format(
      "\"quantization_config\": {{\n    \"activation_scheme\": "
      "\"dynamic\",\n    \"fmt\": \"e4m3\",\n    "
      "\"modules_to_not_convert\": [{}],\n    \"quant_method\": "
      "\"fp8\",\n    \"weight_block_size\": [{}, {}]\n  }}",
      names, kBlock, kBlock);
}

void write_config(Catalog& catalog, const std::set<std::string>& kept) {
  for (Sidecar& sidecar : catalog.sidecars) {
    if (sidecar.name != "config.json") continue;
    const std::string text =
        with_member(sidecar_text(sidecar), config_keeping(kept));
    text::parse_python_json(text, sidecar.path);  // it still is one
    sidecar.path = "made:" + sidecar.name;
    sidecar.size = text.size();
    sidecar.text = std::make_shared<const std::string>(text);
    return;
  }
  throw unfaithful_error({catalog.path, {}},
                         "--quantize: there is no config.json to say it")
      .with_hint("--config-from DIR takes the model's");
}

void check_source(const Catalog& catalog) {
  // After a translation the format is the same, but the names are not.
  const std::string_view dialect =
      catalog.dialect == "hf" ? "hf" : dialect_of(catalog);
  if (dialect != "hf")
    throw unfaithful_error({catalog.path, {}},
                           "--quantize fp8-block is for transformers' names, "
                           "and these are {}",
                           dialect.empty() ? "of no known dialect" : dialect)
        .with_hint(find_family(catalog, {})
                       ? "--dialect hf brings them there"
                       : "--family NAME brings them there; `ckpt family list` "
                         "has all");
  const auto quantized = quantized_weights(catalog);
  if (!quantized.empty() || quantization_config(catalog).there)
    throw unfaithful_error({catalog.path, {}},
                           "--quantize: weights are quantized already")
        .with_hint(dequantize_hint(catalog));
}

// transformers makes an fp8 layer of a Linear, not of a Conv1D or of a class of
// Falcon's own, and would take the codes for numbers.
void check_linear(const Catalog& catalog) {
  for (const Sidecar& sidecar : catalog.sidecars) {
    if (sidecar.name != "config.json") continue;
    const auto config =
        text::parse_python_json(sidecar_text(sidecar), sidecar.path);
    if (!config.is_object()) continue;
    const auto type = config.find("model_type");
    if (type == config.end() || !type->is_string()) continue;
    for (const char* other : {"gpt2", "openai-gpt", "falcon"})
      if (*type == other)
        throw unfaithful_error({catalog.path, {}},
                               "--quantize: the matrices of a {} are not "
                               "transformers' Linear, and it has fp8 for that "
                               "alone",
                               other);
  }
}

uint64_t block_count(uint64_t size) { return (size + kBlock - 1) / kBlock; }

// transformers 5.12's dequantize=True goes by the quotient of codes and scales
// instead of weight_block_size: 184 rows with two scales are 2 x 92 to it.
// Where the quotient is no whole number it refuses the model.
bool is_misread(const Shape& shape) {
  bool other = false;
  for (const uint64_t size : shape) {
    const uint64_t count = block_count(size);
    if (size % count != 0) return false;
    other = other || (count > 1 && size / count != kBlock);
  }
  return other;
}

void warn_of_misread(Catalog& catalog, const std::vector<std::string>& names) {
  if (names.empty()) return;
  catalog.problems.push_back(warning(
      "fp8_blocks", {catalog.path, names.front()},
      "its last block is smaller than 128 (as in {} weights altogether): "
      "transformers' FineGrainedFP8Config(dequantize=True) takes all blocks "
      "for equal ones and reads other numbers; ckpt --dtype and readers of "
      "weight_block_size read these",
      names.size()));
}

// The codes or the scales of a weight, made as they are read.
Tensor made_of(Catalog& catalog, const Decoding& base, Coding coding,
               DType dtype, std::string name, Shape shape) {
  Decoding made = base;
  made.coding = coding;
  made.dtype = dtype;
  Tensor tensor{.name = name, .dtype = dtype, .shape = shape};
  tensor.pinned = dtype;
  tensor.pieces = {
      {.box = Box::whole(shape),
       .flat = {},
       .extent = {.offset = 0,
                  .strides = {},
                  .file = static_cast<uint32_t>(catalog.files.size())}}};
  catalog.files.push_back(decoded_file("made:" + name + " fp8-block",
                                       byte_size(dtype, shape).value_or(0),
                                       std::move(made)));
  return tensor;
}

}  // namespace

void quantize_fp8(Catalog& catalog) {
  check_source(catalog);
  check_linear(catalog);
  const auto files = std::make_shared<const std::vector<File>>(catalog.files);
  // A head that is tied is in no file, and is a Linear all the same.
  std::set<std::string> kept{"lm_head"};
  std::vector<Tensor> tensors;
  std::vector<std::string> misread;
  uint64_t count = 0;
  for (Tensor& tensor : catalog.tensors) {
    const std::string& name = tensor.name;
    const size_t rank = tensor.shape.size();
    const bool model = tensor.kind != Kind::optim && is_wide(tensor.dtype);
    if (model && rank == 3 && name.find("experts.") != name.npos)
      throw unfaithful_error({catalog.path, name},
                             "--quantize: experts are stacked, {}",
                             to_string(tensor.shape))
          .with_hint("fp8 checkpoints name each of them");
    const bool weight = model && rank == 2 && name.ends_with(".weight");
    if (!weight || stays(name) || element_count(tensor.shape) == 0) {
      // Some of those named like embeddings are Linear (Gemma 4's
      // embedding_projection).
      if (weight) kept.insert(name.substr(0, name.size() - 7));
      tensors.push_back(std::move(tensor));
      continue;
    }
    Decoding made{.rows = tensor.shape[0],
                  .columns = tensor.shape[1],
                  .block_rows = kBlock,
                  .block_columns = kBlock,
                  .bits = static_cast<uint32_t>(8 * element_size(tensor.dtype)),
                  .name = name,
                  .files = files};
    made.codes.name = name;
    made.codes.dtype = tensor.dtype;
    made.codes.shape = {1, made.rows, made.columns};
    fold_pieces(tensor, catalog, made.codes);
    tensors.push_back(made_of(catalog, made, Coding::kFp8Codes, DType::f8_e4m3,
                              name, tensor.shape));
    tensors.push_back(made_of(
        catalog, made, Coding::kFp8Scales, DType::f32, name + "_scale_inv",
        {block_count(made.rows), block_count(made.columns)}));
    if (is_misread(tensor.shape)) misread.push_back(name);
    ++count;
  }
  if (count == 0)
    throw unfaithful_error({catalog.path, {}},
                           "--quantize: no tensor is a weight of a "
                           "linear layer");
  catalog.tensors = std::move(tensors);
  catalog.skeleton.reset();
  write_config(catalog, kept);
  warn_of_misread(catalog, misread);
  catalog.assumptions.push_back(fmt::format(
      "{} weights become fp8 codes in blocks of 128x128; {} modules "
      "stay as they are",
      count, kept.size()));
}

}  // namespace ckpt::families
