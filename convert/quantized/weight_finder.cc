// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/weight_finder.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "convert/quantized/codes.h"
#include "convert/quantized/quantized.h"
#include "lib/pickle/value.h"

namespace ckpt::families {
namespace {

// How many elements of `size` share one of `scales` scales; `said`: the
// configuration's number, or 0. Nothing if they don't fit.
std::optional<uint64_t> block_of(uint64_t size, uint64_t scales,
                                 uint64_t said) {
  constexpr uint64_t kUsual = 128;
  if (scales == 0 || size == 0) return std::nullopt;
  if (said != 0)
    return up(size, said) == scales ? std::optional(said) : std::nullopt;
  if (scales == 1) return size;
  if (scales == size) return 1;
  if (up(size, kUsual) == scales) return kUsual;
  if (size % scales == 0) return size / scales;
  return std::nullopt;
}

}  // namespace

bool is_scale_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         dtype == DType::f8_e8m0 || dtype == DType::f64;
}

Shape in_three(const Shape& shape) {
  if (element_count(shape) == 1) return {1, 1, 1};
  if (shape.size() == 1) return {1, 1, shape[0]};
  if (shape.size() == 2) return {1, shape[0], shape[1]};
  return shape;
}

std::string block_text(const Decoding& made) {
  const bool rows = made.block_rows == made.rows;
  const bool columns = made.block_columns == made.columns;
  if (rows && columns) return made.scales.shape[0] > 1 ? "matrix" : "tensor";
  if (made.block_rows == 1 && columns) return "channel";
  if (made.block_columns == 1 && rows) return "column";
  if (made.block_rows == 1) return fmt::format("group {}", made.block_columns);
  return fmt::format("{}x{}", made.block_rows, made.block_columns);
}

WeightFinder::WeightFinder(const Catalog& catalog, bool contents)
    : catalog_(catalog),
      contents_(contents),
      config_(quantization_config(catalog)) {
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind != Kind::optim) {
      by_name_.emplace(tensor.name, &tensor);
      if (tensor.name == "scaled_fp8" || tensor.name.ends_with(".scaled_fp8"))
        markers_.push_back(tensor.name);
    }
  for (const Object& object : catalog.objects) {
    if (object.name != "__metadata__" || !object.document) continue;
    const auto pairs = object.document->as_pairs(object.node);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const std::string_view text = object.document->text((*pairs)[i + 1]);
      if (text.find("\"_tensor_data_names\"") == text.npos) continue;
      try {
        torchao_.emplace_back(object.document->text((*pairs)[i]),
                              text::parse_json(text, catalog.path));
      } catch (const Error&) {  // a note of someone's, about such files
      }
    }
    const pickle::Id said =
        object.document->find(object.node, "_quantization_metadata");
    if (said == pickle::kNoId) continue;
    const auto parsed =
        text::parse_json(object.document->text(said), catalog.path);
    if (parsed.is_object() && parsed.contains("layers"))
      layers_ = parsed["layers"];
  }
}

std::vector<LogicalWeight> WeightFinder::find() {
  for (const Object& object : catalog_.objects) torchao(object);
  for (const auto& [name, said] : torchao_) torchao_header(name, said);
  for (const Tensor& tensor : catalog_.tensors)
    if (may_be_codes(catalog_, tensor)) look_at(tensor);
  check_neighbours();
  quantized_by_torch();  // whatever is beside them, they say all themselves
  return std::move(found_);
}

const Tensor* WeightFinder::get(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Where WeightFinder::where(const Tensor& tensor) const {
  if (tensor.pieces.empty()) return {catalog_.path, tensor.name};
  return {catalog_.files.at(tensor.pieces.front().extent.file).path,
          tensor.name};
}

const Tensor& WeightFinder::need(const Tensor& codes,
                                 const std::string& name) const {
  if (const Tensor* found = get(name)) return *found;
  throw input_error({where(codes).path, name},
                    "is missing, and {} ({} {}) are quantized codes",
                    codes.name, ckpt::name(codes.dtype), to_string(codes.shape))
      .with_hint("without it nobody can tell which numbers they are");
}

void WeightFinder::mismatch(const Tensor& scales, const Tensor& codes) const {
  throw input_error(where(scales), "{} does not fit {} {}{}",
                    to_string(scales.shape), codes.name, to_string(codes.shape),
                    config_.block.empty()
                        ? std::string()
                        : fmt::format(" in blocks of {}x{}", config_.block[0],
                                      config_.block[1]));
}

void WeightFinder::open(LogicalWeight& weight, std::string why) {
  if (weight.open.empty()) weight.open = std::move(why);
}

void WeightFinder::add(LogicalWeight weight) {
  if (weight.block.empty()) weight.block = block_text(weight.made);
  found_.push_back(std::move(weight));
}

void WeightFinder::need_method(
    LogicalWeight& weight,
    std::initializer_list<std::string_view> methods) const {
  if (std::ranges::find(methods, std::string_view(config_.method)) !=
      methods.end())
    return;
  open(weight, config_.there
                   ? fmt::format("quantization_config is of another kind: {}",
                                 config_.method.empty() ? "no quant_method"
                                                        : config_.method)
                   : std::string("no quantization_config says how"));
}

void WeightFinder::add_part(LogicalWeight& weight,
                            const std::string& name) const {
  if (get(name)) weight.parts.push_back(name);
}

void WeightFinder::look_at(const Tensor& tensor) {
  const std::string& name = tensor.name;
  const std::string module(parent_module(name));
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  const auto stem = [&](std::string_view end) {
    return name.substr(0, name.size() - end.size());
  };
  if (get(name + ".absmax") || get(name + ".quant_state.bitsandbytes__nf4") ||
      get(name + ".quant_state.bitsandbytes__fp4"))
    return bitsandbytes_4bit(tensor);
  if (is_scale_dtype(tensor.dtype)) return;
  if (ends("weight._data")) return quanto(tensor);
  if (ends("weight_packed"))
    return tensor.dtype == DType::i32  ? compressed_pack(tensor)
           : tensor.dtype == DType::u8 ? fp4(tensor)
                                       : void();
  switch (tensor.dtype) {
    case DType::u8:
      if (tensor.shape.size() == 4 && ends("_blocks") &&
          (config_.method == "mxfp4" || get(stem("_blocks") + "_scales")))
        mxfp4(tensor);
      else if (tensor.shape.size() > 1 && get(name + "_scale_2"))
        fp4(tensor);
      return;
    case DType::i32:
      if (ends("qweight")) words(tensor);
      return;
    case DType::u32:
      if (ends("weight") && get(stem("weight") + "scales")) mlx(tensor);
      return;
    case DType::i8:
      if (ends("weight") && bitsandbytes_int8(tensor)) return;
      return scaled(tensor);
    default:
      if (is_small_float(tensor.dtype)) scaled(tensor);
  }
}

void WeightFinder::add_helpers(LogicalWeight& weight, const std::string& stem) {
  for (const char* ending :
       {"input_scale", "input_zero_point", "output_scale", "activation_scale",
        "activation_scale_inv", "weight_shape", "input_global_scale",
        "scale_input"})
    add_part(weight, stem + ending);
}

void WeightFinder::set_blocks(Decoding& made, const Tensor& scales,
                              const Tensor& codes) {
  Shape three = in_three(scales.shape);
  // [rows] of a matrix, [batch] and [batch, rows] of stacked ones.
  if (scales.shape.size() == 1 && three[2] > 1)
    three = made.batch > 1 ? Shape{three[2], 1, 1} : Shape{1, three[2], 1};
  if (scales.shape.size() == 2 && made.batch > 1 &&
      scales.shape[0] == made.batch)
    three = {scales.shape[0], scales.shape[1], 1};
  if (scales.shape.size() > 3 || (three[0] != 1 && three[0] != made.batch))
    mismatch(scales, codes);
  const bool said = config_.block.size() == 2;
  const auto rows = block_of(made.rows, three[1], said ? config_.block[0] : 0);
  const auto columns =
      block_of(made.columns, three[2], said ? config_.block[1] : 0);
  if (!rows || !columns ||
      (config_.strategy == "group" && made.columns % *columns != 0))
    mismatch(scales, codes);
  made.block_rows = *rows;
  made.block_columns = *columns;
  made.scales.name = scales.name;
  made.scales.dtype = scales.dtype;
  made.scales.shape = three;
}

void WeightFinder::set_tensor(Tensor& to, const Tensor& from, Shape shape) {
  to.name = from.name;
  to.dtype = from.dtype;
  to.shape = std::move(shape);
}

// A tensor beside codes that no rule knows may change what they mean: an order
// of groups, a rotation, a second scale.
void WeightFinder::check_neighbours() {
  std::unordered_set<std::string_view> explained;
  std::unordered_map<std::string_view, LogicalWeight*> modules;
  for (LogicalWeight& weight : found_) {
    for (const std::string& part : weight.parts) explained.insert(part);
    const std::string_view module = parent_module(weight.parts.front());
    modules.emplace(
        module.ends_with(".weight") ? parent_module(module) : module, &weight);
  }
  for (const Tensor& tensor : catalog_.tensors) {
    const std::string_view name = tensor.name;
    if (tensor.kind == Kind::optim || explained.contains(name) ||
        name.ends_with("bias") || is_cache_scale(name))
      continue;
    for (std::string_view at = parent_module(name); !at.empty();
         at = parent_module(at)) {
      const auto found = modules.find(at);
      // Parameters of modules below it are theirs.
      const bool own = parent_module(name) == at ||
                       name.substr(at.size() + 1).starts_with("weight.");
      if (found != modules.end() && own)
        open(*found->second, fmt::format("no rule knows what {} is for", name));
    }
  }
}

}  // namespace ckpt::families
