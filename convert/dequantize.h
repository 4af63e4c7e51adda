// SPDX-License-Identifier: Apache-2.0
// Quantized weights as the numbers that they stand for.
//
//   a.weight (f8 [r, c]) + a.weight_scale_inv ─┐
//   a.qweight + a.qzeros + a.scales + a.g_idx ─┼─► a.weight (bf16 [r, c])
//   a_blocks + a_scales ───────────────────────┘   a File that is decoded
//
// No byte is read here. Whatever comes after sees a weight like any other:
// dialects rename it, ranks cut it, the engine makes its elements as it reads.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/decoding.h"

namespace ckpt::families {

// One weight that the tensors `parts` are together; the first are its codes.
struct LogicalWeight {
  std::string name;
  Shape shape;
  std::string method;  // "fp8", "int8", "mxfp4", "gptq", "awq"
  uint32_t bits = 8;
  std::string block;  // what shares a scale: "128x128", "channel", "group 32"
  std::vector<std::string> parts;
  Decoding
      made;  // without `files`; tensors without pieces until they are folded
};

// False: nothing in it has the dtype and the name of codes.
bool may_be_quantized(const Catalog& catalog);

// All of them, in the order of the catalog. Throws input_error where scales
// don't fit their codes or are missing, unfaithful_error for a way of
// quantizing that is not known.
std::vector<LogicalWeight> logical_weights(const Catalog& catalog);

// Puts weights of that dtype in the place of their codes and leaves out what
// they are made of, config.json's quantization_config too. Extents have to be
// located. Does nothing if nothing is quantized.
void dequantize(Catalog& catalog, DType dtype);

// Gives `to`, which has the shape [batch, rows, columns] already, the pieces of
// `from` as boxes of it, each once. Throws unfaithful_error for pieces whose
// rows are not runs of bytes.
void fold_pieces(const Tensor& from, const Catalog& catalog, Tensor& to);

}  // namespace ckpt::families
