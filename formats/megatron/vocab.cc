#include "formats/megatron/vocab.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "formats/megatron/keys.h"

namespace ckpt::megatron {
namespace {

constexpr uint64_t kUsualMultiple = 128;

// A file of zeros for rows of this tensor.
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

}  // namespace

bool has_vocabulary(std::string_view text) {
  const Key key = parse_key(text);
  return key.name == "embedding.word_embeddings.weight" ||
         key.name == "output_layer.weight" || key.name == "output_layer.bias";
}

uint64_t padded_rows(uint64_t rows, const Facts& facts, uint64_t tp) {
  if (rows == 0 || rows % tp == 0) return rows;
  const uint64_t multiple = facts.vocab_multiple.value_or(kUsualMultiple);
  const auto step = checked_mul(multiple, tp);
  const auto padded = step ? checked_mul((rows - 1) / *step + 1, *step)
                           : std::optional<uint64_t>();
  if (!padded)
    throw unfaithful_error({},
                           "a vocabulary of {} rows can't be padded to a "
                           "multiple of {} * {}",
                           rows, multiple, tp);
  return *padded;
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
      from, to, facts.vocab_multiple.value_or(kUsualMultiple),
      facts.vocab_multiple ? "args.make_vocab_size_divisible_by"
                           : "Megatron's default",
      tp));
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
