// SPDX-License-Identifier: Apache-2.0
// Finds the weights that codes and scales stand for. Private to this room.
//
// A rule explains a weight if it knows every tensor of its module and every key
// of the configuration. What it doesn't know makes the weight an open one
// (LogicalWeight::open): it is counted and named, and has no numbers.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "convert/quantized/config.h"
#include "convert/quantized/dequantize.h"
#include "lib/text/json.h"

namespace ckpt::families {

class WeightFinder {
 public:
  // `contents`: small tensors that describe others may be read.
  WeightFinder(const Catalog& catalog, bool contents);

  std::vector<LogicalWeight> find();

 private:
  const Tensor* get(const std::string& name) const;
  Where where(const Tensor& tensor) const;
  const Tensor& need(const Tensor& codes, const std::string& name) const;
  [[noreturn]] void mismatch(const Tensor& scales, const Tensor& codes) const;
  void look_at(const Tensor& tensor);
  // Why it has no numbers; the first reason stays.
  static void open(LogicalWeight& weight, std::string why);
  void add(LogicalWeight weight);
  // Opens it unless quantization_config has one of these methods; "" is none.
  void need_method(LogicalWeight& weight,
                   std::initializer_list<std::string_view> methods) const;
  void add_part(LogicalWeight& weight, const std::string& name) const;
  void add_helpers(LogicalWeight& weight, const std::string& stem);
  void set_blocks(Decoding& made, const Tensor& scales, const Tensor& codes);
  static void set_tensor(Tensor& to, const Tensor& from, Shape shape);
  void check_neighbours();

  // weights_scaled.cc: one code a byte
  void scaled(const Tensor& codes);
  bool comfy_marker(LogicalWeight& weight, const std::string& stem);
  void mxfp4(const Tensor& codes);
  bool bitsandbytes_int8(const Tensor& codes);
  void quanto(const Tensor& codes);

  // weights_words.cc: GPTQ, AWQ
  void words(const Tensor& codes);
  bool may_be_group(uint64_t in, uint64_t rows) const;
  uint64_t group_rows(uint64_t in, const Tensor& scales) const;
  void set_gptq(const Tensor& codes, Decoding& made);
  void set_awq(const Tensor& codes, Decoding& made);

  // weights_packed.cc: codes of some bits in bytes
  void compressed_pack(const Tensor& codes);
  void packed_zeros(LogicalWeight& weight, const Tensor& codes,
                    const std::string& stem);
  void need_format(LogicalWeight& weight, const std::string& format) const;
  void check_strategy(LogicalWeight& weight);
  void fp4(const Tensor& codes);
  void bitsandbytes_4bit(const Tensor& codes);
  void nested_absmax(LogicalWeight& weight, const Tensor& absmax,
                     const nlohmann::json& state);
  void mlx(const Tensor& codes);
  void set_packed(LogicalWeight& weight, const Tensor& codes, uint64_t columns);

  // weights_torchao.cc
  void torchao(const Object& object);
  void torchao_header(const std::string& name, const nlohmann::json& said);
  void torchao_parts(LogicalWeight& weight, const std::string& stem,
                     const std::string& kind, const nlohmann::json& block);
  void set_torchao(LogicalWeight& weight, const Tensor& codes,
                   const Tensor& scales, const nlohmann::json& block);
  void quantized_by_torch();
  void set_affine(LogicalWeight& weight, const Tensor& codes,
                  const Object& object);

  const Catalog& catalog_;
  const bool contents_;
  const QuantizationConfig config_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  nlohmann::json layers_;             // of _quantization_metadata
  std::vector<std::string> markers_;  // scaled_fp8: ComfyUI's, of a file
  bool markers_taken_ = false;
  // Of torchao's safetensors: a weight and what the header says of it.
  std::vector<std::pair<std::string, nlohmann::json>> torchao_;
  std::vector<LogicalWeight> found_;
};

inline uint64_t up(uint64_t count, uint64_t by) {
  return (count + by - 1) / by;
}
// Rank 3, batch first; a tensor of one element is [1, 1, 1].
Shape in_three(const Shape& shape);
bool is_qint(DType dtype);
// What quantized_by_torch() counts on: tensors of scales and zeros, which a
// pickle has beside each of torch's quantized tensors as a value.
void add_quantizers(Catalog& catalog);
bool is_scale_dtype(DType dtype);
std::string block_text(const Decoding& made);

}  // namespace ckpt::families
