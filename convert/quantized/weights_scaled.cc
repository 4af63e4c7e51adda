// SPDX-License-Identifier: Apache-2.0
// Weights with one code a byte, and gpt-oss's mxfp4.
#include <fmt/format.h>

#include "ckpt/error.h"
#include "convert/quantized/codes.h"
#include "convert/quantized/quantized.h"
#include "convert/quantized/weight_finder.h"
#include "lib/small_tensor.h"
#include "lib/text/json.h"

namespace ckpt::families {

// a.weight (f8, i8) with a.weight_scale_inv or a.weight_scale
void WeightFinder::scaled(const Tensor& codes) {
  const std::string& name = codes.name;
  const bool is_weight = name.ends_with("weight");
  const std::string stem =
      is_weight ? name.substr(0, name.size() - 6) : std::string();
  const Tensor* scales = get(name + "_scale_inv");
  if (!scales) scales = get(name + "_scale");
  const bool fp8 = is_small_float(codes.dtype);
  const bool comfy = fp8 && !scales && is_weight && !markers_.empty();
  if (comfy) scales = get(stem + "scale_weight");
  // A quantized model has no plain eight-bit numbers.
  const bool has_scale =
      fp8 ? config_.there : config_.method == "compressed-tensors";
  if (!scales && is_weight && has_scale && codes.shape.size() > 1)
    need(codes, name + (config_.method == "fp8" ? "_scale_inv" : "_scale"));
  if (!scales || get(name + "_scale_2") || codes.shape.size() < 2 ||
      codes.shape.size() > 3)
    return;
  // Two e2m1 values to a byte are i8, too, with scales of this name.
  if (!fp8 && scales->name.ends_with("_scale_inv")) return;
  if (!is_scale_dtype(scales->dtype) && !(fp8 && scales->dtype == DType::u8))
    throw input_error(where(*scales), "scales of {} are {}", name,
                      ckpt::name(scales->dtype));
  LogicalWeight weight{.name = name, .shape = codes.shape};
  weight.method = fp8 ? "fp8" : "int8";
  if (get(name + "_g_idx"))
    open(weight, "its groups are in an order of their own: " + name + "_g_idx");
  Decoding& made = weight.made;
  const Shape three = codes.shape.size() == 3
                          ? codes.shape
                          : Shape{1, codes.shape[0], codes.shape[1]};
  made.batch = three[0];
  made.rows = three[1];
  made.columns = three[2];
  set_tensor(made.codes, codes, three);
  weight.parts = {name, scales->name};
  set_blocks(made, *scales, codes);
  if (const Tensor* zeros = get(name + "_zero_point")) {
    if (element_count(zeros->shape) != element_count(scales->shape) ||
        (zeros->dtype != DType::i8 && zeros->dtype != DType::u8 && !fp8))
      throw input_error(where(*zeros), "{} {} zeros for {} scales {}",
                        ckpt::name(zeros->dtype), to_string(zeros->shape),
                        to_string(scales->shape), scales->name);
    weight.parts.push_back(zeros->name);
    if (zeros->dtype == DType::i8 || zeros->dtype == DType::u8)
      set_tensor(made.zeros, *zeros, made.scales.shape);
    else  // fp8 has no other zero
      throw unfaithful_error(where(*zeros), "fp8 codes with zeros of {}",
                             ckpt::name(zeros->dtype));
  } else if (!fp8 && config_.asymmetric) {
    need(codes, name + "_zero_point");
  }
  if (is_weight) add_helpers(weight, stem);
  const bool marked = is_weight && comfy_marker(weight, stem);
  // A marker of the whole file goes with the first weight.
  if ((comfy || marked) && !markers_taken_) {
    weight.parts.insert(weight.parts.end(), markers_.begin(), markers_.end());
    markers_taken_ = true;
  }
  if (!fp8 && !marked)
    need_method(weight, {"compressed-tensors"});
  else if (fp8)
    need_method(weight,
                {"", "fp8", "compressed-tensors", "fbgemm_fp8", "modelopt"});
  add(std::move(weight));
}

// ComfyUI's files say in a tensor of bytes how each weight is quantized, or in
// the header for all of them:
//
//   a.comfy_quant        {"format": "int8_tensorwise", "convrot": true}
//   _quantization_metadata  {"layers": {"a": {"format": "float8_e4m3fn"}}}
bool WeightFinder::comfy_marker(LogicalWeight& weight,
                                const std::string& stem) {
  constexpr uint64_t kMost = 64 << 10;
  nlohmann::json said;
  const Tensor* marker = get(stem + "comfy_quant");
  if (marker) {
    weight.parts.push_back(marker->name);
    const auto text = contents_ && marker->dtype == DType::u8
                          ? small_tensor(catalog_, *marker, kMost)
                          : std::nullopt;
    if (text) said = text::parse_json(*text, where(*marker).path);
  } else if (const auto layer = layers_.find(stem.substr(0, stem.size() - 1));
             !stem.empty() && layer != layers_.end()) {
    said = *layer;
  } else {
    return false;
  }
  if (!said.is_object() || !said.contains("format")) {
    open(weight, "what its marker of ComfyUI's says can't be told");
    return true;
  }
  const auto format = said["format"];
  const bool fits =
      weight.made.codes.dtype == DType::i8        ? format == "int8_tensorwise"
      : weight.made.codes.dtype == DType::f8_e4m3 ? format == "float8_e4m3fn"
                                                  : format == "float8_e5m2";
  if (!fits)
    open(weight, fmt::format("its marker of ComfyUI's says {}", format.dump()));
  // What the others say is for kernels.
  for (const auto& [key, value] : said.items())
    if (key != "format" && key != "full_precision_matrix_mult" &&
        key != "per_row" && value != false && !value.is_null())
      open(weight, fmt::format("its marker of ComfyUI's says {} {}, and no "
                               "rule knows what that changes{}",
                               key, value.dump(),
                               key == "convrot" ? ": codes are rotated" : ""));
  return true;
}

// bitsandbytes: a.weight (i8) with a.SCB, the largest magnitude of each row.
bool WeightFinder::bitsandbytes_int8(const Tensor& codes) {
  const std::string stem = codes.name.substr(0, codes.name.size() - 6);
  const Tensor* scales = get(stem + "SCB");
  if (!scales) return false;
  if (codes.shape.size() != 2 || scales->shape != Shape{codes.shape[0]} ||
      scales->dtype != DType::f32)
    mismatch(*scales, codes);
  LogicalWeight weight{.name = codes.name, .shape = codes.shape};
  weight.method = "bitsandbytes int8";
  need_method(weight, {"bitsandbytes"});
  Decoding& made = weight.made;
  made.rows = codes.shape[0];
  made.columns = made.block_columns = codes.shape[1];
  made.factor = 7.874015718698502e-3F;  // bitsandbytes' 1 / 127
  set_tensor(made.codes, codes, {1, made.rows, made.columns});
  set_tensor(made.scales, *scales, {1, made.rows, 1});
  weight.parts = {codes.name, scales->name};
  if (const Tensor* order = get(stem + "weight_format")) {
    weight.parts.push_back(order->name);
    const auto said = small_integers(catalog_, *order, contents_ ? 8 : 0);
    if (!said || said->size() != 1 || said->front() != 0)
      open(weight, order->name + ": its rows are in the order of a kernel");
  }
  add(std::move(weight));
  return true;
}

// quanto: a.weight._data (i8, f8), a.weight._scale; quanto_qmap.json or
// quantization_config says which type they are.
void WeightFinder::quanto(const Tensor& codes) {
  const std::string name = codes.name.substr(0, codes.name.size() - 6);
  const std::string module(parent_module(name));
  const Tensor& scales = need(codes, name + "._scale");
  LogicalWeight weight{.name = name, .shape = codes.shape};
  weight.method = "quanto";
  weight.parts = {codes.name, scales.name};
  add_part(weight, name + "._shift");
  add_helpers(weight, module + ".");
  need_method(weight, {"quanto"});
  const auto& map = config_.quanto;
  const auto layer = map.is_object() ? map.find(module) : map.end();
  std::string type;
  if (map.is_object() && layer != map.end() && layer->is_object()) {
    type = word_in(*layer, "weights");
    if (word_in(*layer, "activations") != "none")
      open(weight, "quanto_qmap.json: its activations are quantized");
  } else {
    open(weight, "no quanto_qmap.json says which type it is");
  }
  const bool plain = (type == "qint8" && codes.dtype == DType::i8) ||
                     ((type == "qfloat8" || type == "qfloat8_e4m3fn") &&
                      codes.dtype == DType::f8_e4m3) ||
                     (type == "qfloat8_e5m2" && codes.dtype == DType::f8_e5m2);
  Decoding& made = weight.made;
  if (!plain || codes.shape.size() != 2 || !is_scale_dtype(scales.dtype)) {
    open(weight,
         "quanto's " + (type.empty() ? "types" : type) + " are not known");
    weight.block = "group";
    if (codes.dtype == DType::u8) weight.bits = type == "qint2" ? 2 : 4;
    if (codes.dtype == DType::u8)
      weight.shape = {element_count(codes.shape).value_or(0) * 8 / weight.bits};
    return add(std::move(weight));
  }
  made.rows = codes.shape[0];
  made.columns = codes.shape[1];
  made.rounds = scales.dtype;
  set_tensor(made.codes, codes, {1, made.rows, made.columns});
  set_blocks(made, scales, codes);
  add(std::move(weight));
}

// gpt-oss: a_blocks [experts, rows, groups, 16], a_scales [experts, rows,
// groups]. The model has them transposed: [experts, columns, rows].
void WeightFinder::mxfp4(const Tensor& codes) {
  const std::string stem = codes.name.substr(0, codes.name.size() - 7);
  const Tensor& scales = need(codes, stem + "_scales");
  const Shape& shape = codes.shape;
  if (shape[3] != 16 || scales.shape != Shape{shape[0], shape[1], shape[2]})
    mismatch(scales, codes);
  if (scales.dtype != DType::u8 && scales.dtype != DType::f8_e8m0)
    throw input_error(where(scales), "scales of {} are {}, not u8", codes.name,
                      ckpt::name(scales.dtype));
  LogicalWeight weight{.name = stem, .method = "mxfp4", .bits = 4};
  Decoding& made = weight.made;
  made.coding = Coding::kE2m1;
  made.bits = 4;
  made.batch = shape[0];
  made.rows = shape[1];
  made.columns = shape[2] * 32;
  made.transposed = true;
  made.block_columns = 32;
  weight.shape = {made.batch, made.columns, made.rows};
  set_tensor(made.codes, codes, {shape[0], shape[1], shape[2] * 16});
  set_tensor(made.scales, scales, scales.shape);
  weight.block = "group 32";
  weight.parts = {codes.name, scales.name};
  need_method(weight, {"", "mxfp4"});
  add(std::move(weight));
}

}  // namespace ckpt::families
