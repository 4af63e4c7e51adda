// SPDX-License-Identifier: Apache-2.0
#include "convert/dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "convert/quantized.h"
#include "convert/quantized_config.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

// By dtype and name alone. Codes made on the way (--quantize) are not the
// source's.
bool may_be_codes(const Catalog& catalog, const Tensor& tensor) {
  const bool fits =
      is_small_float(tensor.dtype) || tensor.dtype == DType::i8 ||
      (tensor.dtype == DType::u8 && tensor.name.ends_with("_blocks")) ||
      (tensor.dtype == DType::i32 && tensor.name.ends_with("qweight"));
  return fits && tensor.kind != Kind::optim &&
         (tensor.pieces.empty() ||
          !is_decoded(catalog.files.at(tensor.pieces.front().extent.file)));
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 ||
         dtype == DType::f8_e8m0 || dtype == DType::f64;
}

// Rank 3, batch first; a tensor of one element is [1, 1, 1].
Shape in_three(const Shape& shape) {
  if (element_count(shape) == 1) return {1, 1, 1};
  if (shape.size() == 1) return {1, 1, shape[0]};
  if (shape.size() == 2) return {1, shape[0], shape[1]};
  return shape;
}

uint64_t up(uint64_t count, uint64_t by) { return (count + by - 1) / by; }

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

std::string block_text(const Decoding& made) {
  const bool rows = made.block_rows == made.rows;
  const bool columns = made.block_columns == made.columns;
  if (rows && columns) return made.scales.shape[0] > 1 ? "matrix" : "tensor";
  if (made.block_rows == 1 && columns) return "channel";
  if (made.block_columns == 1 && rows) return "column";
  if (made.block_rows == 1) return fmt::format("group {}", made.block_columns);
  return fmt::format("{}x{}", made.block_rows, made.block_columns);
}

class Finder {
 public:
  explicit Finder(const Catalog& catalog)
      : catalog_(catalog), config_(quantization_config(catalog)) {
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind != Kind::optim) by_name_.emplace(tensor.name, &tensor);
  }

  std::vector<LogicalWeight> find() {
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.kind != Kind::optim) look_at(tensor);
    return std::move(found_);
  }

 private:
  const Tensor* get(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  Where where(const Tensor& tensor) const {
    if (tensor.pieces.empty()) return {catalog_.path, tensor.name};
    return {catalog_.files.at(tensor.pieces.front().extent.file).path,
            tensor.name};
  }
  const Tensor& need(const Tensor& codes, const std::string& name) const {
    if (const Tensor* found = get(name)) return *found;
    throw input_error(where(codes),
                      "{} {} are quantized codes, and {} is "
                      "missing",
                      name_of(codes.dtype), to_string(codes.shape), name)
        .with_hint("without it nobody can tell which numbers they are");
  }
  static std::string_view name_of(DType dtype) { return ckpt::name(dtype); }
  [[noreturn]] void mismatch(const Tensor& scales, const Tensor& codes) const {
    throw input_error(where(scales), "{} does not fit {} {}{}",
                      to_string(scales.shape), codes.name,
                      to_string(codes.shape),
                      config_.block.empty()
                          ? std::string()
                          : fmt::format(" in blocks of {}x{}", config_.block[0],
                                        config_.block[1]));
  }

  void look_at(const Tensor& tensor) {
    const std::string& name = tensor.name;
    if (!may_be_codes(catalog_, tensor)) return;
    if (tensor.dtype == DType::u8) {
      if (tensor.shape.size() == 4 &&
          (config_.method == "mxfp4" ||
           get(name.substr(0, name.size() - 7) + "_scales")))
        mxfp4(tensor);
    } else if (tensor.dtype == DType::i32) {
      words(tensor);
    } else {
      scaled(tensor);
    }
  }

  void add_helpers(LogicalWeight& weight, const std::string& stem) {
    for (const char* ending :
         {"input_scale", "input_zero_point", "output_scale", "activation_scale",
          "activation_scale_inv", "weight_shape"})
      if (get(stem + ending)) weight.parts.push_back(stem + ending);
  }

  void set_blocks(Decoding& made, const Tensor& scales, const Tensor& codes) {
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
    const auto rows =
        block_of(made.rows, three[1], said ? config_.block[0] : 0);
    const auto columns =
        block_of(made.columns, three[2], said ? config_.block[1] : 0);
    if (!rows || !columns) mismatch(scales, codes);
    made.block_rows = *rows;
    made.block_columns = *columns;
    made.scales.name = scales.name;
    made.scales.dtype = scales.dtype;
    made.scales.shape = three;
  }

  static void set_tensor(Tensor& to, const Tensor& from, Shape shape) {
    to.name = from.name;
    to.dtype = from.dtype;
    to.shape = std::move(shape);
  }

  // a.weight (f8, i8) with a.weight_scale_inv or a.weight_scale
  void scaled(const Tensor& codes) {
    const std::string& name = codes.name;
    const bool is_weight = name.ends_with("weight");
    const std::string stem =
        is_weight ? name.substr(0, name.size() - 6) : std::string();
    const Tensor* scales = get(name + "_scale_inv");
    if (!scales) scales = get(name + "_scale");
    const bool fp8 = is_small_float(codes.dtype);
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
    if (get(name + "_g_idx"))
      throw unfaithful_error(where(codes),
                             "its groups are in an order of their "
                             "own: {}_g_idx",
                             name);
    if (!is_scale_dtype(scales->dtype) && !(fp8 && scales->dtype == DType::u8))
      throw input_error(where(*scales), "scales of {} are {}", name,
                        name_of(scales->dtype));
    LogicalWeight weight{.name = name, .shape = codes.shape};
    weight.method = fp8 ? "fp8" : "int8";
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
                          name_of(zeros->dtype), to_string(zeros->shape),
                          to_string(scales->shape), scales->name);
      weight.parts.push_back(zeros->name);
      if (zeros->dtype == DType::i8 || zeros->dtype == DType::u8)
        set_tensor(made.zeros, *zeros, made.scales.shape);
      else  // fp8 has no other zero
        throw unfaithful_error(where(*zeros), "fp8 codes with zeros of {}",
                               name_of(zeros->dtype));
    } else if (!fp8 && config_.asymmetric) {
      need(codes, name + "_zero_point");
    }
    if (is_weight) add_helpers(weight, stem);
    weight.block = block_text(made);
    found_.push_back(std::move(weight));
  }

  // gpt-oss: a_blocks [experts, rows, groups, 16], a_scales [experts, rows,
  // groups]. The model has them transposed: [experts, columns, rows].
  void mxfp4(const Tensor& codes) {
    const std::string stem = codes.name.substr(0, codes.name.size() - 7);
    const Tensor& scales = need(codes, stem + "_scales");
    const Shape& shape = codes.shape;
    if (shape[3] != 16 || scales.shape != Shape{shape[0], shape[1], shape[2]})
      mismatch(scales, codes);
    if (scales.dtype != DType::u8 && scales.dtype != DType::f8_e8m0)
      throw input_error(where(scales), "scales of {} are {}, not u8",
                        codes.name, name_of(scales.dtype));
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
    found_.push_back(std::move(weight));
  }

  // GPTQ [in / per word, out], AWQ [in, out / per word]; the model has
  // [out, in].
  void words(const Tensor& codes) {
    const std::string stem = codes.name.substr(0, codes.name.size() - 7);
    const Tensor& scales = need(codes, stem + "scales");
    const Tensor& zeros = need(codes, stem + "qzeros");
    if (codes.shape.size() != 2 || scales.shape.size() != 2 ||
        !is_scale_dtype(scales.dtype))
      mismatch(scales, codes);
    const uint64_t groups = scales.shape[0], out = scales.shape[1];
    if (zeros.shape.size() != 2 || zeros.shape[0] != groups || out == 0 ||
        zeros.dtype != DType::i32 || groups == 0)
      mismatch(zeros, codes);
    const bool gptq = codes.shape[1] == out;
    const uint64_t bits = zeros.shape[1] * 32 / out;
    const bool packs = (bits == 2 || bits == 4 || bits == 8) &&
                       zeros.shape[1] * 32 == out * bits &&
                       (config_.bits == 0 || config_.bits == bits);
    if (!packs)
      throw unfaithful_error(where(codes),
                             "codes of {} bits in words of 32: zeros {} for {} "
                             "columns",
                             config_.bits ? config_.bits : bits,
                             to_string(zeros.shape), out)
          .with_hint("2, 4 and 8 bits are known");
    LogicalWeight weight{.name = stem + "weight",
                         .bits = static_cast<uint32_t>(bits)};
    Decoding& made = weight.made;
    made.bits = weight.bits;
    made.transposed = true;
    made.columns = out;
    if (gptq)
      set_gptq(codes, made);
    else
      set_awq(codes, made);
    weight.method = gptq ? "gptq" : "awq";
    const uint64_t in = made.rows;
    made.block_rows = group_rows(in, scales);
    weight.shape = {out, in};
    set_tensor(made.codes, codes, {1, codes.shape[0], codes.shape[1]});
    set_tensor(made.scales, scales, {1, groups, out});
    set_tensor(made.zeros, zeros, {1, groups, zeros.shape[1]});
    weight.parts = {codes.name, scales.name, zeros.name};
    const Tensor* order = get(stem + "g_idx");
    if (order) {
      if (order->shape != Shape{in} || order->dtype != DType::i32)
        mismatch(*order, codes);
      weight.parts.push_back(order->name);
      if (gptq) set_tensor(made.order, *order, {1, 1, in});
    } else if (gptq && config_.ordered) {
      need(codes, stem + "g_idx");
    } else if (up(in, made.block_rows) != groups ||
               !may_be_group(in, made.block_rows)) {
      mismatch(scales, codes);
    }
    weight.block = groups == 1 ? std::string("channel")
                               : fmt::format("group {}", made.block_rows);
    found_.push_back(std::move(weight));
  }

  // A last group that is smaller shows no size, so what was not stated must be
  // a usual one.
  bool may_be_group(uint64_t in, uint64_t rows) const {
    return rows == config_.group_size || rows == in ||
           (in % rows == 0 && rows >= 16 && std::has_single_bit(rows));
  }

  // Rows of a group: the stated number, if that makes as many groups.
  uint64_t group_rows(uint64_t in, const Tensor& scales) const {
    const uint64_t said = config_.group_size, groups = scales.shape[0];
    if (said && up(in, said) == groups) return said;
    if (said && !config_.overrides)
      throw input_error(where(scales),
                        "{} rows in groups of {} by quantization_config have "
                        "{} scales each, here are {}",
                        in, said, up(in, said), groups);
    return up(in, groups);
  }

  void set_gptq(const Tensor& codes, Decoding& made) {
    const std::string& kind = config_.checkpoint_format;
    if (!config_.there || config_.method != "gptq" ||
        (!kind.empty() && kind != "gptq" && kind != "gptq_v2"))
      throw unfaithful_error(
          where(codes), "{}: whether zeros are stored less one can't be told",
          config_.there ? config_.method + " " + kind
                        : std::string("there is no quantization_config"))
          .with_hint(
              "config.json's quantization_config says checkpoint_format "
              "gptq or gptq_v2");
    made.coding = Coding::kGptq;
    made.zero_offset = kind == "gptq_v2" ? 0 : 1;
    made.rows = codes.shape[0] * 32 / made.bits;
  }

  void set_awq(const Tensor& codes, Decoding& made) {
    const std::string& kind = config_.version;
    const bool known = config_.method.empty() || config_.method == "awq";
    if (!known || made.bits != 4 || codes.shape[1] * 8 != made.columns ||
        (!kind.empty() && kind != "gemm" && kind != "GEMM"))
      throw unfaithful_error(where(codes),
                             "codes {} of {} bits for {} columns, in no known "
                             "order{}",
                             to_string(codes.shape), made.bits, made.columns,
                             kind.empty() ? kind : " (version " + kind + ")")
          .with_hint("GPTQ's order and AWQ's gemm are known");
    made.coding = Coding::kAwq;
    made.rows = codes.shape[0];
  }

  const Catalog& catalog_;
  const QuantizationConfig config_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  std::vector<LogicalWeight> found_;
};

}  // namespace

void fold_pieces(const Tensor& from, const Catalog& catalog, Tensor& to) {
  Tensor located = from;
  View::of(from).reshape(to.shape).into(located);
  std::vector<Piece>& pieces = located.pieces;
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t j = pieces.size(); j-- > i + 1;)
      if (pieces[j].box == pieces[i].box)
        pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(j));
  const uint64_t element = element_size(from.dtype);
  for (const Piece& piece : pieces) {
    const bool runs =
        piece.box.shape.size() == 3 && piece.extent.strides.size() == 3 &&
        (piece.box.shape[2] == 1 || piece.extent.strides[2] == element);
    if (!located.grid.empty() || piece.transform != kNoTransform || !runs)
      throw unfaithful_error({catalog.path, from.name},
                             "what is turned, cut finely or of another byte "
                             "order is neither dequantized nor quantized")
          .with_hint(
              "write the checkpoint as safetensors first, without "
              "--dtype");
  }
  to.pieces = std::move(pieces);
}

bool may_be_quantized(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return may_be_codes(catalog, tensor);
  });
}

std::vector<LogicalWeight> logical_weights(const Catalog& catalog) {
  if (!may_be_quantized(catalog)) return {};
  return Finder(catalog).find();
}

void dequantize(Catalog& catalog, DType dtype) {
  std::vector<LogicalWeight> weights = logical_weights(catalog);
  if (weights.empty()) return;
  const QuantizationConfig config = quantization_config(catalog);
  if (!config.hindrance.empty())
    throw unfaithful_error({catalog.path, weights.front().name},
                           "--dtype: its codes and scales are not all of the "
                           "model: {}",
                           config.hindrance)
        .with_hint("without --dtype all of it is kept as it is");
  check_activation_scales(catalog);
  std::unordered_map<std::string, LogicalWeight*> by_codes;
  std::unordered_set<std::string> gone;
  std::unordered_map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : catalog.tensors)
    by_name.emplace(tensor.name, &tensor);
  for (LogicalWeight& weight : weights) {
    by_codes.emplace(weight.parts.front(), &weight);
    gone.insert(weight.parts.begin() + 1, weight.parts.end());
    if (weight.name != weight.parts.front() && by_name.contains(weight.name))
      throw input_error({catalog.path, weight.name},
                        "is there beside its own quantized codes {}",
                        weight.parts.front());
    Decoding& made = weight.made;
    for (Tensor* part : {&made.codes, &made.scales, &made.zeros, &made.order})
      if (!part->shape.empty())
        fold_pieces(*by_name.at(part->name), catalog, *part);
    made.name = weight.name;
    // Casts count values too large for f16, so that is left to them.
    made.dtype = dtype == DType::bf16 ? dtype : DType::f32;
  }
  const auto files = std::make_shared<const std::vector<File>>(catalog.files);
  std::vector<Tensor> tensors;
  tensors.reserve(catalog.tensors.size());
  for (Tensor& tensor : catalog.tensors) {
    if (gone.contains(tensor.name)) continue;
    const auto found = by_codes.find(tensor.name);
    if (found == by_codes.end()) {
      tensors.push_back(std::move(tensor));
      continue;
    }
    LogicalWeight& weight = *found->second;
    weight.made.files = files;
    Tensor whole = tensor;
    whole.name = weight.name;
    whole.dtype = weight.made.dtype;
    whole.shape = weight.shape;
    whole.grid = {};
    whole.pinned.reset();
    whole.tie = 0;
    const auto bytes = byte_size(whole.dtype, whole.shape);
    if (!bytes)
      throw input_error({catalog.path, whole.name}, "{} is too large",
                        to_string(whole.shape));
    whole.pieces = {
        {.box = Box::whole(whole.shape),
         .flat = {},
         .extent = {.offset = 0,
                    .strides = {},
                    .file = static_cast<uint32_t>(catalog.files.size())}}};
    // Everything, because journals tell by the path whether the work is the
    // same.
    std::string path = fmt::format("made:{} {} {} bits {} zeros +{}",
                                   weight.name, weight.method, weight.bits,
                                   weight.block, weight.made.zero_offset);
    catalog.files.push_back(
        decoded_file(std::move(path), *bytes, std::move(weight.made)));
    tensors.push_back(std::move(whole));
  }
  catalog.tensors = std::move(tensors);
  if (config.there) check_unknown_codes(catalog, config.method);
  catalog.skeleton.reset();
  catalog.assumptions.push_back(
      fmt::format("{} weights of {} bits ({}, {}) are dequantized to {}",
                  weights.size(), weights.front().bits, weights.front().method,
                  weights.front().block, name(dtype)));
  drop_cache_scales(catalog);
  drop_quantization_config(catalog);
}

}  // namespace ckpt::families
