// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/gguf_quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/dialects.h"
#include "convert/config/gguf.h"
#include "convert/quantized/fold.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/kinds.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "lib/text/words.h"

namespace ckpt::families {
namespace {

bool has_numbers(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// What llama.cpp's converter leaves in f16 where all else has three values.
bool is_ternary_exception(const Tensor& tensor, GgmlType type) {
  constexpr auto kNames = std::to_array<std::string_view>(
      {"token_embd.weight", "per_layer_token_embd.weight", "output.weight"});
  return (type == GgmlType::tq1_0 || type == GgmlType::tq2_0) &&
         std::ranges::find(kNames, tensor.name) != kNames.end();
}

Tensor blocks_from(Catalog& catalog, Decoding made, const Tensor& tensor,
                   const GgmlInfo& info) {
  made.coding = Coding::kGgmlBlocks;
  made.dtype = DType::u8;
  made.ggml = info.type;
  made.name = tensor.name;
  made.codes.name = tensor.name;
  made.codes.dtype = tensor.dtype;
  fold_rows(tensor, catalog, made.codes);
  made.batch = made.codes.shape[0];
  made.rows = made.codes.shape[1];
  made.columns = made.codes.shape[2];
  Tensor blocks{.name = tensor.name, .dtype = DType::u8, .shape = tensor.shape};
  blocks.shape.back() = blocks.shape.back() / info.elements * info.bytes;
  blocks.pinned = DType::u8;
  blocks.pieces = {
      {.box = Box::whole(blocks.shape),
       .flat = {},
       .extent = {.offset = 0,
                  .strides = {},
                  .file = static_cast<uint32_t>(catalog.files.size())}}};
  catalog.files.push_back(decoded_file(
      fmt::format("made:{} {}", tensor.name, info.name),
      byte_size(DType::u8, blocks.shape).value_or(0), std::move(made)));
  return blocks;
}

void check_gguf_source(const Catalog& catalog, const GgmlInfo& info,
                       bool numbers) {
  if (catalog.dialect != kGguf && dialect_of(catalog) != kGguf)
    throw unfaithful_error({catalog.path, {}},
                           "--quantize {} is for llama.cpp's names, and these "
                           "are others",
                           text::lower(info.name));
  for (const Tensor& tensor : catalog.tensors)
    if (const GgmlInfo* blocks = blocks_of(tensor, catalog); blocks && !numbers)
      throw unfaithful_error({catalog.path, tensor.name},
                             "is blocks of {} already", blocks->name)
          .with_hint(
              "--dtype f32 makes blocks of the numbers that these stand for, "
              "whose error is added to theirs");
}

}  // namespace

void quantize_ggml(Catalog& catalog, GgmlType type, std::optional<DType> rest) {
  const GgmlInfo& info = *ggml_info(type);
  check_gguf_source(catalog, info, rest.has_value());
  const auto files = std::make_shared<const std::vector<File>>(catalog.files);
  uint64_t made = 0;
  std::vector<std::string> odd;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model || !has_numbers(tensor.dtype) ||
        gguf::needs_f32(tensor) || element_count(tensor.shape) == 0)
      continue;
    const bool whole = tensor.shape.back() % info.elements == 0;
    if (!whole || is_ternary_exception(tensor, type)) {
      if (!rest) tensor.pinned = DType::f16;
      if (!whole) odd.push_back(tensor.name);
      continue;
    }
    Decoding one;
    one.files = files;
    tensor = blocks_from(catalog, std::move(one), tensor, info);
    ++made;
  }
  if (made == 0)
    throw unfaithful_error({catalog.path, {}},
                           "--quantize: no tensor has rows of a multiple of {} "
                           "numbers",
                           info.elements);
  if (!odd.empty())
    catalog.problems.push_back(remark(
        "odd_rows", {catalog.path, odd.front()},
        "stays numbers{}: its rows are not whole blocks of {}",
        odd.size() > 1 ? fmt::format(", as {} others do", odd.size() - 1) : "",
        info.elements));
  catalog.assumptions.push_back(fmt::format("{} become {} in blocks of {}",
                                            text::counted(made, "weight"),
                                            info.name, info.elements));
}

bool holds_ggml(std::string_view format) { return format == gguf::kFormat; }

std::string next_step(const Catalog& target, const std::string& path) {
  if (target.format != gguf::kFormat) return "";
  bool model = false;
  for (const Tensor& tensor : target.tensors) {
    if (tensor.dtype == DType::u8) return "";
    model = model || tensor.name == "token_embd.weight";
  }
  if (!model) return "";
  std::string stem = path.ends_with(gguf::kEnding)
                         ? path.substr(0, path.size() - gguf::kEnding.size())
                         : io::join(path, "model");
  return fmt::format("llama-quantize {} {} Q4_K_M",
                     text::shell_path(stem + std::string(gguf::kEnding)),
                     text::shell_path(stem + "-Q4_K_M.gguf"));
}

}  // namespace ckpt::families
