// SPDX-License-Identifier: Apache-2.0
// Weights in words of 32 bits: GPTQ and AWQ.
#include <fmt/format.h>

#include <bit>

#include "ckpt/error.h"
#include "convert/quantized/weight_finder.h"

namespace ckpt::families {
// GPTQ [in / per word, out], AWQ [in, out / per word]; the model has
// [out, in].
void WeightFinder::words(const Tensor& codes) {
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
  // AutoRound's own result is of the dtype of the scales.
  if (config_.method == "auto-round") made.rounds = scales.dtype;
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
bool WeightFinder::may_be_group(uint64_t in, uint64_t rows) const {
  return rows == config_.group_size || rows == in ||
         (in % rows == 0 && rows >= 16 && std::has_single_bit(rows));
}

// Rows of a group: the stated number, if that makes as many groups.
uint64_t WeightFinder::group_rows(uint64_t in, const Tensor& scales) const {
  const uint64_t said = config_.group_size, groups = scales.shape[0];
  if (said && up(in, said) == groups) return said;
  if (said && !config_.overrides)
    throw input_error(where(scales),
                      "{} rows in groups of {} by quantization_config have "
                      "{} scales each, here are {}",
                      in, said, up(in, said), groups);
  return up(in, groups);
}

void WeightFinder::set_gptq(const Tensor& codes, Decoding& made) {
  // AutoRound says how in another key.
  const bool auto_round = config_.method == "auto-round" &&
                          config_.packing == "auto_round:auto_gptq";
  const std::string& kind = config_.checkpoint_format;
  if (!auto_round && (config_.method != "gptq" ||
                      (!kind.empty() && kind != "gptq" && kind != "gptq_v2")))
    throw unfaithful_error(
        where(codes), "{}: whether zeros are stored less one can't be told",
        config_.there ? config_.method + " " + kind + config_.packing
                      : std::string("there is no quantization_config"))
        .with_hint(
            "config.json's quantization_config says checkpoint_format "
            "gptq or gptq_v2");
  made.coding = Coding::kGptq;
  made.zero_offset = kind == "gptq_v2" ? 0 : 1;
  made.rows = codes.shape[0] * 32 / made.bits;
}

void WeightFinder::set_awq(const Tensor& codes, Decoding& made) {
  const std::string& kind = config_.version;
  const bool known = config_.method.empty() || config_.method == "awq" ||
                     (config_.method == "auto-round" &&
                      config_.packing == "auto_round:auto_awq");
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

}  // namespace ckpt::families
