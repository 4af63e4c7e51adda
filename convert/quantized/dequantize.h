// SPDX-License-Identifier: Apache-2.0
// Turns quantized weights into the numbers that they stand for.
//
//   a.weight (f8 [r, c]) + a.weight_scale_inv ─┐
//   a.qweight + a.qzeros + a.scales + a.g_idx ─┼─► a.weight (bf16 [r, c])
//   a_blocks + a_scales ───────────────────────┘   a File that is decoded
//
// No byte is read here. Everything later sees an ordinary weight: dialects
// rename it, ranks cut it, the engine decodes its elements as it reads.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/decoding.h"

namespace ckpt::families {

// One weight that the tensors `parts` make up; the first holds its codes.
struct LogicalWeight {
  std::string name;
  Shape shape;
  std::string method;  // "fp8", "int8", "mxfp4", "gptq", "bitsandbytes nf4" …
  uint32_t bits = 8;
  std::string block;  // what shares a scale: "128x128", "channel", "group 32"
  // Why no rule makes numbers of its codes, though one finds them; else "".
  std::string open;
  std::vector<std::string> parts;
  Decoding
      made;  // without `files`; tensors without pieces until they are folded
};

// False for an optimizer's state, and for codes that are made on the way.
bool may_be_codes(const Catalog& catalog, const Tensor& tensor);

// False if nothing in it has the dtype of codes.
bool may_be_quantized(const Catalog& catalog);

// All of them, in the order of the catalog. `contents`: small tensors that say
// more than names and shapes (a shape, a marker) are read, too; without that
// some are open. Throws input_error if scales are missing or don't fit their
// codes, unfaithful_error for an unknown quantization method.
std::vector<LogicalWeight> logical_weights(const Catalog& catalog,
                                           bool contents = false);

// Replaces codes by weights of that dtype and removes what they are made of,
// including config.json's quantization_config. Extents must be located. Does
// nothing if nothing is quantized.
void dequantize(Catalog& catalog, DType dtype);

// Gives `to`, whose shape is already [batch, rows, columns], the pieces of
// `from` as boxes of it, each once. Throws unfaithful_error for pieces whose
// rows are not contiguous.
void fold_pieces(const Tensor& from, const Catalog& catalog, Tensor& to);

}  // namespace ckpt::families
