// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/options.h"
#include "models/view.h"

namespace ckpt::megatron {
namespace {

// Makes a file of zeros for rows of this tensor.
uint32_t zeros(Catalog& catalog, DType dtype, uint64_t bytes) {
  catalog.files.push_back({.path = "zero rows",
                           .size = bytes,
                           .codec = Codec::kFill,
                           .fill = std::string(element_size(dtype), '\0')});
  return static_cast<uint32_t>(catalog.files.size() - 1);
}

void append_rows(Catalog& catalog, Tensor& tensor, uint64_t rows) {
  Box box = Box::whole(tensor.shape);
  box.offset[0] = tensor.shape[0];
  box.shape[0] = rows - tensor.shape[0];
  Shape shape = tensor.shape;
  shape[0] = rows;
  const auto bytes = byte_size(tensor.dtype, box.shape);
  if (!bytes || !byte_size(tensor.dtype, shape))
    throw unfaithful_error({catalog.path, tensor.name},
                           "with {} rows it is too large", rows);
  if (element_size(tensor.dtype) == 0)
    throw unfaithful_error({catalog.path, tensor.name},
                           "rows of {} can't be padded", name(tensor.dtype));
  const uint32_t file = zeros(catalog, tensor.dtype, *bytes);
  tensor.pieces.push_back({.box = box, .extent = {.file = file}});
  tensor.shape = shape;
}

void cut_rows(Tensor& tensor, uint64_t rows) {
  std::vector<Piece> kept;
  for (Piece& piece : tensor.pieces) {
    const uint64_t begin = piece.box.offset[0];
    if (begin >= rows) continue;
    const uint64_t size = std::min(piece.box.shape[0], rows - begin);
    if (piece.flat && piece.box.shape[0] != 0) {
      const uint64_t row = volume(piece.box) / piece.box.shape[0];
      piece.flat->end = std::min(piece.flat->end, size * row);
      if (piece.flat->begin >= piece.flat->end) continue;
    }
    piece.box.shape[0] = size;
    kept.push_back(std::move(piece));
  }
  tensor.pieces = std::move(kept);
  tensor.shape[0] = rows;
}

// Rows from `real` on are left out: they must be zero.
void expect_padding(Catalog& catalog, const Tensor& tensor, uint64_t real) {
  Tensor padding{.name = tensor.name};
  families::View::of(tensor)
      .slice(0, real, tensor.shape[0] - real)
      .into(padding);
  Redundant proof{.tensor = std::move(padding), .value = 0.0};
  proof.why = fmt::format(
      "by args.vocab_size its rows past {} are padding, and cut: --vocab-size "
      "{} cuts them whatever they are, --vocab-size {} keeps them",
      real, real, tensor.shape[0]);
  catalog.redundant.push_back(std::move(proof));
}

uint64_t stored_rows(uint64_t real, uint64_t multiple, uint64_t tp) {
  const auto step = checked_mul(multiple, tp);
  const auto stored = step && *step != 0 && real != 0
                          ? checked_mul((real - 1) / *step + 1, *step)
                          : std::optional<uint64_t>();
  if (!stored)
    throw unfaithful_error({},
                           "a vocabulary of {} rows can't be padded to a "
                           "multiple of {} * {}",
                           real, multiple, tp);
  return *stored;
}

}  // namespace

void set_rows(Catalog& catalog, Tensor& tensor, uint64_t rows) {
  if (rows < tensor.shape[0])
    cut_rows(tensor, rows);
  else if (rows > tensor.shape[0])
    append_rows(catalog, tensor, rows);
}

bool has_vocabulary(std::string_view text) {
  const Key key = parse_key(text);
  return key.name == "embedding.word_embeddings.weight" ||
         key.name == "output_layer.weight" || key.name == "output_layer.bias" ||
         key.name == "lm_head.output_layer.weight" ||
         key.name == "lm_head.output_layer.bias";
}

uint64_t padded_rows(uint64_t rows, const Facts& facts, uint64_t tp) {
  if (rows == 0 || rows % tp == 0) return rows;
  const uint64_t multiple = facts.vocab_multiple.value_or(kUsualVocabMultiple);
  return stored_rows(rows, multiple, tp);
}

void pad_vocabulary(Catalog& catalog, const Facts& facts, uint64_t tp) {
  uint64_t from = 0, to = 0;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.shape.empty() || !has_vocabulary(tensor.name)) continue;
    const uint64_t rows = padded_rows(tensor.shape[0], facts, tp);
    if (rows == tensor.shape[0]) continue;
    from = tensor.shape[0];
    to = rows;
    append_rows(catalog, tensor, rows);
  }
  if (to == 0) return;
  catalog.assumptions.push_back(fmt::format(
      "vocabulary: {} rows are padded with zeros to {}, a multiple of {} "
      "({}) and tp={}",
      from, to, facts.vocab_multiple.value_or(kUsualVocabMultiple),
      facts.vocab_multiple ? "args.make_vocab_size_divisible_by"
                           : "Megatron's default",
      tp));
}

bool ask_vocabulary(Catalog& catalog, const Facts& facts, const Layout& layout,
                    bool unpadded) {
  const Wanted wanted = wanted_of(layout);
  const uint64_t rows = vocabulary_rows(catalog);
  const bool asked = wanted.vocab_size != 0 || wanted.vocab_multiple != 0;
  if (rows == 0 || (!asked && !unpadded)) return false;
  if (wanted.vocab_size > rows)
    throw unfaithful_error({catalog.path, {}},
                           "--vocab-size {}, but the embedding has {} rows",
                           wanted.vocab_size, rows)
        .with_hint(fmt::format("--to hf --vocab-size {} adds rows of zeros to "
                               "the model: convert what that writes",
                               wanted.vocab_size));
  uint64_t real = rows;
  if (wanted.vocab_size != 0)
    real = wanted.vocab_size;
  else if (!unpadded && facts.vocab_size.value_or(rows) < rows)
    real = *facts.vocab_size;
  const uint64_t multiple =
      wanted.vocab_multiple != 0
          ? wanted.vocab_multiple
          : facts.vocab_multiple.value_or(kUsualVocabMultiple);
  const uint64_t tp = std::max<uint32_t>(1, layout.topology.tp);
  const uint64_t stored = stored_rows(real, multiple, tp);
  locate(catalog);  // items are found by the index's boxes
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    if (tensor.shape.empty() || tensor.shape[0] != rows ||
        !has_vocabulary(tensor.name))
      continue;
    if (real < rows && wanted.vocab_size == 0)
      expect_padding(catalog, tensor, real);
    if (real < rows) set_rows(catalog, tensor, real);
    set_rows(catalog, tensor, stored);
  }
  catalog.assumptions.push_back(fmt::format(
      "vocabulary: {} of {} rows are in use; with zeros behind them {} are "
      "stored, a multiple of {} * {}",
      real, rows, stored, multiple, tp));
  return true;
}

uint64_t vocabulary_rows(const Catalog& catalog) {
  uint64_t rows = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::optim || tensor.shape.empty()) continue;
    const Key key = parse_key(tensor.name);
    if (key.name == "embedding.word_embeddings.weight") return tensor.shape[0];
    if (key.name == "output_layer.weight") rows = tensor.shape[0];
  }
  return rows;
}

}  // namespace ckpt::megatron
