// SPDX-License-Identifier: Apache-2.0
// Weights whose codes share bytes: bitsandbytes' four bits, compressed-tensors'
// packed integers, NVFP4 and MXFP4, MLX.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "ckpt/error.h"
#include "convert/quantized/quantized.h"
#include "convert/quantized/weight_finder.h"
#include "lib/small_tensor.h"
#include "lib/text/json.h"

namespace ckpt::families {
namespace {

using Table = std::shared_ptr<const std::vector<float>>;

constexpr uint64_t kMostState = 64 << 10;  // bytes of what describes a weight

Table table_of(std::vector<float> numbers) {
  return std::make_shared<const std::vector<float>>(std::move(numbers));
}

// `zero`: what code 8 is, which ModelOpt has without a sign.
Table e2m1(float zero) {
  return table_of({0.F, .5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, zero, -.5F, -1.F,
                   -1.5F, -2.F, -3.F, -4.F, -6.F});
}

// Codes of `bits` bits that count from -2^(bits - 1).
Table centred(uint32_t bits) {
  std::vector<float> numbers(size_t{1} << bits);
  const auto half = static_cast<float>(size_t{1} << (bits - 1));
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<float>(i) - half;
  return table_of(std::move(numbers));
}

// bitsandbytes' tables, which it uses whatever quant_map says.
constexpr std::array<uint32_t, 16> kNf4 = {
    0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D, 0xBE3D353F,
    0xBDBA7871, 0x00000000, 0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A,
    0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000};
constexpr std::array<uint32_t, 16> kFp4 = {
    0x00000000, 0x3BAAAAAB, 0x3F2AAAAB, 0x3F800000, 0x3EAAAAAB, 0x3F000000,
    0x3E2AAAAB, 0x3E800000, 0x00000000, 0xBBAAAAAB, 0xBF2AAAAB, 0xBF800000,
    0xBEAAAAAB, 0xBF000000, 0xBE2AAAAB, 0xBE800000};

std::vector<float> floats_of(const std::array<uint32_t, 16>& bits) {
  std::vector<float> numbers;
  numbers.reserve(bits.size());
  for (const uint32_t one : bits) numbers.push_back(std::bit_cast<float>(one));
  return numbers;
}

std::optional<DType> torch_dtype(const std::string& name) {
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "float32") return DType::f32;
  return std::nullopt;
}

uint64_t bytes_of(const Tensor& tensor) {
  return byte_size(tensor.dtype, tensor.shape).value_or(0);
}

}  // namespace

// Sets the codes [.., rows, bytes or words] of a weight of that many columns.
void WeightFinder::set_packed(LogicalWeight& weight, const Tensor& codes,
                              uint64_t columns) {
  Decoding& made = weight.made;
  const Shape three = in_three(codes.shape);
  made.coding = Coding::kPacked;
  made.bits = weight.bits;
  made.batch = three[0];
  made.rows = three[1];
  made.columns = columns;
  set_tensor(made.codes, codes, three);
  weight.shape = codes.shape;
  weight.shape[codes.shape.size() - 1] = columns;
  weight.parts.insert(weight.parts.begin(), codes.name);
}

// compressed-tensors, pack-quantized: a.weight_packed (i32 [rows, words]),
// a.weight_scale, a.weight_shape, a.weight_zero_point packed along the rows.
void WeightFinder::compressed_pack(const Tensor& codes) {
  const std::string stem = codes.name.substr(0, codes.name.size() - 13);
  const Tensor& scales = need(codes, stem + "weight_scale");
  LogicalWeight weight{.name = stem + "weight", .method = "int pack"};
  need_method(weight, {"compressed-tensors"});
  if (codes.shape.size() < 2 || codes.shape.size() > 3 ||
      scales.shape.size() != codes.shape.size() ||
      !is_scale_dtype(scales.dtype))
    mismatch(scales, codes);
  const uint64_t words = codes.shape.back(), groups = scales.shape.back();
  if (config_.bits < 1 || config_.bits > 8)
    open(weight, "quantization_config says no num_bits that all groups have");
  weight.bits = config_.bits >= 1 && config_.bits <= 8
                    ? static_cast<uint32_t>(config_.bits)
                    : 4;
  need_format(weight, "pack-quantized");
  if (config_.type != "int")
    open(weight, "quantization_config says type " + config_.type);
  uint64_t columns = words * 32 / weight.bits;
  const bool grouped = config_.block.size() == 2 && config_.block[0] == 1;
  if (grouped && groups > 1 &&
      up(groups * config_.block[1] * weight.bits, 32) == words)
    columns = groups * config_.block[1];
  if (const Tensor* shape = get(stem + "weight_shape"); shape && contents_) {
    const auto said = small_integers(catalog_, *shape, 64);
    if (!said || said->size() != codes.shape.size() || said->back() < 1 ||
        (*said)[said->size() - 2] !=
            static_cast<int64_t>(codes.shape[codes.shape.size() - 2]))
      throw input_error(where(*shape), "is not the shape of {} {}", codes.name,
                        to_string(codes.shape));
    columns = static_cast<uint64_t>(said->back());
  } else if (contents_) {
    need(codes, stem + "weight_shape");
  }
  // Before codes were packed without gaps, a word had as many as fit whole.
  if (up(columns * weight.bits, 32) != words)
    throw input_error(where(codes),
                      "{} has {} words a row, {} codes of {} bits "
                      "need {}",
                      to_string(codes.shape), words, columns, weight.bits,
                      up(columns * weight.bits, 32));
  set_packed(weight, codes, columns);
  weight.made.table = centred(weight.bits);
  weight.made.rounds = scales.dtype;  // what compressed-tensors computes in
  set_blocks(weight.made, scales, codes);
  check_strategy(weight);
  weight.parts.push_back(scales.name);
  packed_zeros(weight, codes, stem);
  add_helpers(weight, stem);
  if (get(stem + "weight_g_idx"))
    open(weight,
         "its groups are in an order of their own: " + stem + "weight_g_idx");
  add(std::move(weight));
}

// compressed-tensors finds the way back by the format alone.
void WeightFinder::need_format(LogicalWeight& weight,
                               const std::string& format) const {
  if (std::ranges::find(config_.formats, format) == config_.formats.end())
    open(weight, "quantization_config does not say format " + format);
}

// What the scales look like must be what the configuration says.
void WeightFinder::check_strategy(LogicalWeight& weight) {
  const Decoding& made = weight.made;
  const std::string& said = config_.strategy;
  const bool channel = made.block_columns == made.columns;
  const bool fits = said == "group"     ? config_.block.size() == 2
                    : said == "channel" ? channel && made.block_rows == 1
                    : said == "tensor" ? channel && made.block_rows == made.rows
                    : said == "tensor_group" ? config_.block.size() == 2
                    : said == "block"        ? config_.block.size() == 2
                                             : false;
  if (!fits)
    open(weight, fmt::format("quantization_config says strategy {}, its scales "
                             "are {}",
                             said.empty() ? "null" : said, block_text(made)));
}

void WeightFinder::packed_zeros(LogicalWeight& weight, const Tensor& codes,
                                const std::string& stem) {
  Decoding& made = weight.made;
  const std::string name = stem + "weight_zero_point";
  if (!config_.asymmetric) {
    if (get(name)) {
      weight.parts.push_back(name);
      open(weight, name + " is there, and quantization_config says symmetric");
    }
    return;
  }
  const Tensor& zeros = need(codes, name);
  Shape shape = made.scales.shape;
  shape[1] = up(made.rows * made.bits, 32);
  if (zeros.dtype != DType::i32 || in_three(zeros.shape) != shape ||
      made.block_rows != 1)
    mismatch(zeros, codes);
  set_tensor(made.zeros, zeros, shape);
  made.packed_zeros = true;
  weight.parts.push_back(name);
}

// Pairs of e2m1, the first in the low half:
//
//   a.weight         a.weight_scale (e4m3)  * a.weight_scale_2   ModelOpt
//   a.weight_packed  a.weight_scale (e4m3)  / a.weight_global_scale
//   a.weight_packed  a.weight_scale (u8, exponents)   compressed-tensors
void WeightFinder::fp4(const Tensor& codes) {
  const bool modelopt = codes.name.ends_with("weight");
  const std::string stem =
      codes.name.substr(0, codes.name.size() - (modelopt ? 6 : 13));
  const Tensor& scales = need(codes, stem + "weight_scale");
  const bool mx = !modelopt && scales.dtype == DType::u8;
  const uint64_t group = mx ? 32 : 16;
  LogicalWeight weight{
      .name = stem + "weight", .method = mx ? "mxfp4" : "nvfp4", .bits = 4};
  if (modelopt)
    need_method(weight, {"modelopt", "modelopt_fp4"});
  else
    need_method(weight, {"compressed-tensors"});
  if (modelopt && config_.algorithm != "NVFP4")
    open(weight, "quantization_config says quant_algo " + config_.algorithm);
  if (!modelopt)
    need_format(weight, mx ? "mxfp4-pack-quantized" : "nvfp4-pack-quantized");
  if (!modelopt && (config_.type != "float" || config_.asymmetric))
    open(weight, "quantization_config says type " + config_.type);
  if (!modelopt && config_.strategy != (mx ? "group" : "tensor_group"))
    open(weight, "quantization_config says strategy " + config_.strategy);
  if (config_.bits != 4 && (config_.bits != 0 || !modelopt))
    open(weight, fmt::format("quantization_config says {} bits", config_.bits));
  if (config_.group_size != group && (config_.group_size != 0 || !modelopt))
    open(weight, fmt::format("quantization_config says groups of {}",
                             config_.group_size));
  if (codes.shape.size() < 2 || codes.shape.size() > 3 ||
      (!mx && scales.dtype != DType::f8_e4m3))
    mismatch(scales, codes);
  const uint64_t columns = codes.shape.back() * 2;
  Shape blocks = codes.shape;
  blocks[blocks.size() - 1] = columns / group;
  if (scales.shape != blocks || columns % group != 0) mismatch(scales, codes);
  set_packed(weight, codes, columns);
  Decoding& made = weight.made;
  made.table = e2m1(modelopt ? 0.F : -0.F);
  made.block_columns = group;
  set_tensor(made.scales, scales, in_three(scales.shape));
  weight.parts.push_back(scales.name);
  if (!modelopt) made.rounds = DType::bf16;  // what it unpacks to
  if (!mx) {
    const Tensor& outer = need(
        codes, stem + (modelopt ? "weight_scale_2" : "weight_global_scale"));
    const uint64_t count = element_count(outer.shape).value_or(0);
    if (outer.dtype != DType::f32 || (count != 1 && count != made.batch))
      mismatch(outer, codes);
    set_tensor(made.outer, outer, {count, 1, 1});
    made.outer_divides = !modelopt;
    weight.parts.push_back(outer.name);
  }
  add_helpers(weight, stem);
  add(std::move(weight));
}

// bitsandbytes: a.weight (bytes, of whatever dtype), and below it
//
//   absmax (f32), or absmax (u8) with nested_absmax and nested_quant_map
//   quant_map, quant_state.bitsandbytes__nf4: JSON with shape, blocksize …
void WeightFinder::bitsandbytes_4bit(const Tensor& codes) {
  const std::string& name = codes.name;
  const Tensor& absmax = need(codes, name + ".absmax");
  const bool nf4 = get(name + ".quant_state.bitsandbytes__nf4");
  const std::string kind = nf4 ? "nf4" : "fp4";
  LogicalWeight weight{.name = name,
                       .shape = {bytes_of(codes) * 2},
                       .method = "bitsandbytes " + kind,
                       .bits = 4};
  need_method(weight, {"bitsandbytes"});
  weight.parts = {name, absmax.name};
  for (const char* end :
       {".quant_map", ".nested_absmax", ".nested_quant_map",
        ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"})
    add_part(weight, name + end);
  const Tensor& stated =
      need(codes, name + ".quant_state.bitsandbytes__" + kind);
  const auto text =
      contents_ ? small_tensor(catalog_, stated, kMostState) : std::nullopt;
  const nlohmann::json state =
      text ? text::parse_json(*text, where(stated).path) : nlohmann::json();
  weight.block = "group";
  if (!text) {
    open(weight, stated.name + " can't be read");
    return add(std::move(weight));
  }
  const auto count = [&](const char* key) -> uint64_t {
    return state.contains(key) && state[key].is_number_unsigned()
               ? state[key].get<uint64_t>()
               : 0;
  };
  Shape shape;
  if (state.is_object() && state.contains("shape") && state["shape"].is_array())
    for (const auto& size : state["shape"])
      if (size.is_number_unsigned()) shape.push_back(size.get<uint64_t>());
  const uint64_t size = count("blocksize");
  const auto elements = element_count(shape);
  const auto dtype = torch_dtype(word_in(state, "dtype"));
  if (shape.empty() || !elements || *elements == 0 || size == 0 || !dtype ||
      word_in(state, "quant_type") != kind ||
      shape.size() != state["shape"].size())
    throw input_error(where(stated),
                      "its shape, blocksize, dtype or quant_type "
                      "is none: {}",
                      state.dump().substr(0, 200));
  for (const auto& [key, value] : state.items())
    if (key != "quant_type" && key != "blocksize" && key != "dtype" &&
        key != "shape" && !key.starts_with("nested_"))
      open(weight, stated.name + " says " + key + ", which no rule knows");
  const Tensor& map = need(codes, name + ".quant_map");
  if (const auto numbers = small_floats(catalog_, map, kMostState);
      !numbers || *numbers != floats_of(nf4 ? kNf4 : kFp4))
    open(weight, map.name + " is not bitsandbytes' table of " + kind);
  const uint64_t blocks = up(*elements, size);
  // Storage wider than a byte may be padded.
  const uint64_t stored = up(*elements, 2), there = bytes_of(codes);
  if (there < stored || there - stored >= element_size(codes.dtype))
    throw input_error(where(codes), "{} bytes are not {} codes of 4 bits",
                      there, *elements);
  if (element_count(absmax.shape) != blocks) mismatch(absmax, codes);
  weight.shape = shape;
  Decoding& made = weight.made;
  made.coding = Coding::kPacked;
  made.bits = 4;
  made.high_first = true;
  made.table = table_of(floats_of(nf4 ? kNf4 : kFp4));
  made.rounds = *dtype;
  // Blocks run on from row to row, unless rows are whole numbers of them.
  const uint64_t width = shape.back();
  const bool by_row = width % size == 0 && width % 2 == 0 && there == stored;
  made.columns = by_row ? width : *elements;
  made.rows = *elements / made.columns;
  made.block_columns = size;
  set_tensor(made.codes, codes,
             {1, made.rows, there / made.rows / element_size(codes.dtype)});
  set_tensor(made.scales, absmax, {1, made.rows, blocks / made.rows});
  weight.block = fmt::format("group {}", size);
  if (absmax.dtype == DType::u8)
    nested_absmax(weight, absmax, state);
  else if (absmax.dtype != DType::f32 || get(name + ".nested_absmax"))
    mismatch(absmax, codes);
  add(std::move(weight));
}

void WeightFinder::nested_absmax(LogicalWeight& weight, const Tensor& absmax,
                                 const nlohmann::json& state) {
  const std::string& name = weight.name;
  const Tensor& outer = need(absmax, name + ".nested_absmax");
  const Tensor& map = need(absmax, name + ".nested_quant_map");
  const auto numbers = small_floats(catalog_, map, kMostState);
  const auto size = state.find("nested_blocksize");
  const auto offset = state.find("nested_offset");
  if (size == state.end() || !size->is_number_unsigned() || *size == 0 ||
      offset == state.end() || !offset->is_number() ||
      word_in(state, "nested_dtype") != "float32" || !numbers ||
      numbers->size() != 256 || outer.dtype != DType::f32 ||
      element_count(outer.shape) !=
          up(element_count(absmax.shape).value_or(0), size->get<uint64_t>()))
    throw input_error(where(outer), "{} {} with {} can't be the scales of {}",
                      ckpt::name(outer.dtype), to_string(outer.shape), map.name,
                      absmax.name);
  Decoding& made = weight.made;
  made.outer_block = size->get<uint64_t>();
  made.outer_offset = static_cast<float>(offset->get<double>());
  made.scale_table = table_of(*numbers);
  set_tensor(made.outer, outer, {1, 1, element_count(outer.shape).value_or(0)});
  weight.block += ", scaled twice";
}

// MLX: a.weight (u32 [rows, words]), a.scales, a.biases. config.json says bits
// and group_size, for all modules or for one.
void WeightFinder::mlx(const Tensor& codes) {
  const std::string stem = codes.name.substr(0, codes.name.size() - 6);
  const Tensor& scales = need(codes, stem + "scales");
  LogicalWeight weight{.name = codes.name, .method = "mlx affine"};
  need_method(weight, {"mlx"});
  QuantizationConfig::Affine said = config_.affine;
  if (const auto own = config_.affine_of.find(stem.substr(0, stem.size() - 1));
      own != config_.affine_of.end())
    said = own->second;
  const uint64_t words = codes.shape.back();
  weight.bits = static_cast<uint32_t>(said.bits);
  if (said.mode != "affine") open(weight, "its mode is " + said.mode);
  const Tensor* biases = get(stem + "biases");
  if (said.bits < 1 || said.bits > 8 || said.group_size == 0 ||
      said.bits == 7 || said.bits == 1) {
    open(weight, "config.json says no bits and group_size for it");
    weight.bits = 4;
    said.group_size = 0;
  }
  const uint64_t columns = said.group_size
                               ? scales.shape.back() * said.group_size
                               : words * 32 / weight.bits;
  if (weight.open.empty() &&
      (codes.shape.size() < 2 || codes.shape.size() > 3 || !biases ||
       scales.shape.size() != codes.shape.size() ||
       biases->shape != scales.shape || biases->dtype != scales.dtype ||
       !is_scale_dtype(scales.dtype) || columns * weight.bits != words * 32))
    throw input_error(where(codes),
                      "{} in groups of {} with {} bits does not "
                      "fit scales {}{}",
                      to_string(codes.shape), said.group_size, weight.bits,
                      to_string(scales.shape),
                      biases ? "" : ", and there are no biases");
  set_packed(weight, codes, columns);
  weight.parts.push_back(scales.name);
  if (biases) weight.parts.push_back(biases->name);
  Decoding& made = weight.made;
  weight.block = fmt::format("group {}", said.group_size);
  if (weight.open.empty()) {
    made.block_columns = said.group_size;
    made.adds_zeros = true;
    set_tensor(made.scales, scales, in_three(scales.shape));
    set_tensor(made.zeros, *biases, in_three(biases->shape));
    if (made.scales.shape[0] != made.batch || made.scales.shape[1] != made.rows)
      mismatch(scales, codes);
  }
  add(std::move(weight));
}

}  // namespace ckpt::families
