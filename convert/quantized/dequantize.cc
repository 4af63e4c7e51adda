// SPDX-License-Identifier: Apache-2.0
#include "convert/quantized/dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "convert/quantized/codes.h"
#include "convert/quantized/config.h"
#include "convert/quantized/fold.h"
#include "convert/quantized/quantized.h"
#include "convert/quantized/weight_finder.h"
#include "lib/pickle/json.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

// Words of 32 bits and the like, as the bytes that packed codes are in.
void view_as_bytes(Tensor& codes) {
  const uint64_t element = element_size(codes.dtype);
  codes.dtype = DType::u8;
  codes.shape[2] *= element;
  for (Piece& piece : codes.pieces) {
    piece.box.offset[2] *= element;
    piece.box.shape[2] *= element;
    piece.extent.strides[2] = 1;
  }
}

// ComfyUI's key of a safetensors header that says how each weight is quantized.
// torchao has one for each weight.
constexpr std::string_view kLayers = "_quantization_metadata";

void drop_layers(Catalog& catalog) {
  for (Object& object : catalog.objects) {
    if (object.name != "__metadata__" || !object.document) continue;
    nlohmann::ordered_json said =
        pickle::to_json(*object.document, object.node);
    if (!said.is_object()) continue;
    std::vector<std::string> gone;
    for (const auto& [key, value] : said.items())
      if (value.is_string() &&
          value.get_ref<const std::string&>().starts_with(R"({"_type")"))
        gone.push_back(key);
    if (!gone.empty()) gone.emplace_back("tensor_names");  // torchao's
    gone.emplace_back(kLayers);
    size_t count = 0;
    for (const std::string& key : gone) count += said.erase(key);
    if (count == 0) continue;
    auto document = std::make_shared<pickle::Document>();
    object.node = pickle::from_json(*document, nlohmann::json(said));
    document->set_root(object.node);
    object.document = std::move(document);
  }
}

// The values that a class of tensors keeps beside its parts.
void drop_objects(Catalog& catalog, const std::vector<LogicalWeight>& weights) {
  std::unordered_set<std::string_view> names;
  for (const LogicalWeight& weight : weights) names.insert(weight.name);
  std::erase_if(catalog.objects, [&](const Object& object) {
    for (std::string_view at = object.name; !at.empty(); at = parent_module(at))
      if (names.contains(at)) return true;
    return false;
  });
}

void check_open(const Catalog& catalog,
                const std::vector<LogicalWeight>& weights) {
  for (const LogicalWeight& weight : weights)
    if (!weight.open.empty())
      throw unfaithful_error({catalog.path, weight.parts.front()},
                             "--dtype: {} codes of {}: {}", weight.method,
                             weight.name, weight.open)
          .with_hint(
              "without --dtype codes and scales are kept as they are; "
              "docs/quantized.md lists what is known");
}

}  // namespace

bool may_be_codes(const Catalog& catalog, const Tensor& tensor) {
  return tensor.kind != Kind::optim &&
         (tensor.pieces.empty() ||
          !is_decoded(catalog.files.at(tensor.pieces.front().extent.file)));
}

namespace {

[[noreturn]] void refuse_pieces(const Tensor& from, const Catalog& catalog) {
  throw unfaithful_error({catalog.path, from.name},
                         "what is turned, cut finely or of another byte "
                         "order is neither dequantized nor quantized")
      .with_hint(
          "write the checkpoint without --dtype and --quantize first, and make "
          "them of the result");
}

// Of replicas, the first.
void leave_replicas(std::vector<Piece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t j = pieces.size(); j-- > i + 1;)
      if (pieces[j].box == pieces[i].box)
        pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(j));
}

bool has_plain_rows(const Piece& piece, size_t rank, uint64_t element) {
  return piece.transform == kNoTransform && piece.box.shape.size() == rank &&
         piece.extent.strides.size() == rank &&
         (piece.box.shape.back() == 1 ||
          piece.extent.strides.back() == element);
}

// Adds a piece whose rows are in a grid [..., run, rows] as boxes of [batch,
// rows, columns]: one for each index of the dimensions before the last two.
void unfold(const Piece& piece, const Shape& grid, std::vector<Piece>& to) {
  const size_t run = grid.size() - 2;
  uint64_t count = 1;
  for (size_t f = 0; f < run; ++f) count *= piece.box.shape[f];
  for (uint64_t n = 0; n < count; ++n) {
    uint64_t batch = 0, at = piece.extent.offset, left = n, below = count;
    for (size_t f = 0; f < run; ++f) {
      below /= piece.box.shape[f];
      const uint64_t i = left / below;
      left %= below;
      batch = batch * grid[f] + piece.box.offset[f] + i;
      at += i * piece.extent.strides[f];
    }
    Piece part = piece;
    const auto last = [run](const Dims& all) {
      return Dims(std::span(all.data(), all.size()).subspan(run));
    };
    part.box = {last(piece.box.offset), last(piece.box.shape)};
    part.box.offset[0] += batch * grid[run];
    part.extent.offset = at;
    part.extent.strides = last(piece.extent.strides);
    to.push_back(std::move(part));
  }
}

}  // namespace

void fold_pieces(const Tensor& from, const Catalog& catalog, Tensor& to) {
  Tensor located = from;
  View::of(from).reshape(to.shape).into(located);
  leave_replicas(located.pieces);
  const uint64_t element = element_size(from.dtype);
  for (const Piece& piece : located.pieces)
    if (!located.grid.empty() || !has_plain_rows(piece, 3, element))
      refuse_pieces(from, catalog);
  to.pieces = std::move(located.pieces);
}

void fold_rows(const Tensor& from, const Catalog& catalog, Tensor& to) {
  const uint64_t columns = from.shape.back();
  const uint64_t rows = element_count(from.shape).value_or(0) / columns;
  Tensor located = from;
  View::of(from).reshape({1, rows, columns}).into(located);
  leave_replicas(located.pieces);
  Shape grid = located.grid.empty() ? located.shape : located.grid;
  if (grid.size() < 3 || grid.back() != columns) refuse_pieces(from, catalog);
  grid.pop_back();  // that of the rows, without columns
  const uint64_t element = element_size(from.dtype);
  to.pieces.clear();
  to.shape = {rows / grid.back(), grid.back(), columns};
  for (const Piece& piece : located.pieces) {
    if (!has_plain_rows(piece, grid.size() + 1, element))
      refuse_pieces(from, catalog);
    unfold(piece, grid, to.pieces);
  }
}

// Whoever packs codes into floats keeps bytes beside them that say so.
bool may_be_quantized(const Catalog& catalog) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    const bool fits =
        is_small_float(tensor.dtype) || is_qint(tensor.dtype) ||
        tensor.dtype == DType::i8 || tensor.dtype == DType::u8 ||
        tensor.dtype == DType::u32 ||
        (tensor.dtype == DType::i32 && (tensor.name.ends_with("qweight") ||
                                        tensor.name.ends_with("_packed")));
    return fits && may_be_codes(catalog, tensor);
  });
}

std::vector<LogicalWeight> logical_weights(const Catalog& catalog,
                                           bool contents) {
  if (!may_be_quantized(catalog)) return {};
  return WeightFinder(catalog, contents).find();
}

void dequantize(Catalog& catalog, DType dtype) {
  add_quantizers(catalog);
  std::vector<LogicalWeight> weights = logical_weights(catalog, true);
  if (weights.empty()) return;
  const QuantizationConfig config = quantization_config(catalog);
  if (!config.hindrance.empty())
    throw unfaithful_error({catalog.path, weights.front().name},
                           "--dtype: its codes and scales are not all of the "
                           "model: {}",
                           config.hindrance)
        .with_hint("without --dtype all of it is kept as it is");
  check_activation_scales(catalog);
  check_open(catalog, weights);
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
    for (Tensor* part :
         {&made.codes, &made.scales, &made.zeros, &made.order, &made.outer})
      if (!part->name.empty())
        fold_pieces(*by_name.at(part->name), catalog, *part);
    if (made.coding == Coding::kPacked) view_as_bytes(made.codes);
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
  if (config.there) check_unknown_codes(catalog, config);
  catalog.skeleton.reset();
  catalog.assumptions.push_back(
      fmt::format("{} weights of {} bits ({}, {}) are dequantized to {}",
                  weights.size(), weights.front().bits, weights.front().method,
                  weights.front().block, name(dtype)));
  drop_cache_scales(catalog);
  drop_layers(catalog);
  drop_objects(catalog, weights);
  drop_quantization_config(catalog);
}

}  // namespace ckpt::families
