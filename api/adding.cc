// SPDX-License-Identifier: Apache-2.0
#include "api/adding.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "api/edit/vocabulary.h"
#include "ckpt/error.h"
#include "models/view.h"
#include "reshard/numbers/cast_kernel.h"

namespace ckpt::library {
namespace {

using families::View;
using reshard::LowRankTerm;
using reshard::StoredMatrix;

// The classes of these models store their matrices transposed.
bool is_conv1d(const Catalog& base, const std::string& module) {
  constexpr std::array<std::string_view, 2> kFamilies = {"gpt2", "openai-gpt"};
  constexpr std::array<std::string_view, 4> kNames = {"c_attn", "c_proj",
                                                      "c_fc", "q_attn"};
  return std::ranges::find(kFamilies, base.family) != kFamilies.end() &&
         std::ranges::any_of(kNames, [&](std::string_view name) {
           return module.ends_with(name);
         });
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]",
                     fmt::join(std::span(shape.data(), shape.size()), ", "));
}

bool has_more_rows(const Tensor& old, const Tensor& whole) {
  return has_row_for_each_token(old.name) && !old.shape.empty() &&
         old.shape.size() == whole.shape.size() &&
         whole.shape[0] > old.shape[0] &&
         std::equal(old.shape.begin() + 1, old.shape.end(),
                    whole.shape.begin() + 1);
}

// A convolution's kernel as a matrix: a row for each output.
Tensor as_matrix(const Tensor& tensor) {
  if (tensor.shape.size() <= 2) return tensor;
  uint64_t columns = 1;
  for (size_t d = 1; d < tensor.shape.size(); ++d) columns *= tensor.shape[d];
  Tensor matrix = tensor;
  View::of(tensor).reshape({tensor.shape[0], columns}).into(matrix, UINT64_MAX);
  return matrix;
}

// Factors whose rows are another library's columns: the elements of a row
// stand apart.
bool is_turned(const Tensor& tensor) {
  if (tensor.shape.size() != 2 || tensor.pieces.empty()) return false;
  const Dims& strides = tensor.pieces.front().extent.strides;
  return strides.size() == 2 && tensor.shape[0] > 1 && tensor.shape[1] > 1 &&
         strides[0] == element_size(tensor.dtype) && strides[0] < strides[1];
}

Tensor turned(const Tensor& tensor) {
  Tensor made = tensor;
  View::of(tensor).permute({1, 0}).into(made, UINT64_MAX);
  return made;
}

}  // namespace

Adding::Adding(Catalog& base, peft::Adapter& adapter, double weight,
               bool allow_nonfinite, MadeList& made)
    : base_(base),
      adapter_(adapter),
      weight_(weight),
      allow_nonfinite_(allow_nonfinite),
      made_(made) {
  for (size_t i = 0; i < base.tensors.size(); ++i)
    place_[base.tensors[i].name] = i;
}

void Adding::add_products(Tensor& weight, const peft::Module& module,
                          float scale) {
  const auto product = [&](const Tensor* left, const Tensor* right) {
    reshard::FactoredMatrix made{stored(as_matrix(*left)), {}};
    if (right) made.right = stored(as_matrix(*right));
    return made;
  };
  first_file();
  put_made(weight,
           std::make_unique<reshard::ProductSum>(
               StoredMatrix(as_matrix(weight), base_.files),
               reshard::TwoProducts{.a = product(module.b, module.a),
                                    .b = product(module.b2, module.a2),
                                    .kronecker = module.kronecker,
                                    .scale = scale,
                                    .allow_nonfinite = allow_nonfinite_},
               weight.name));
}

void Adding::add_module(const std::string& name, const peft::Module& module) {
  Tensor& weight = tensor(name + ".weight");
  const float scale = peft::scale_of(adapter_.config, module.name, weight_);
  if (module.b2) return add_products(weight, module, scale);
  const Tensor a = as_matrix(*module.a), b = as_matrix(*module.b);
  const bool stored_turned = is_turned(a) && is_turned(b);
  const Tensor& left = stored_turned ? turned(b) : b;
  const Tensor& right = stored_turned ? turned(a) : a;
  // [in, out] of a matrix that is transposed, too.
  const bool transposed = is_transposed(name, module, weight);
  LowRankTerm term{.left = stored(left),
                   .right = stored(right),
                   .transposed = transposed != stored_turned,
                   .scale = scale,
                   .magnitude = {}};
  if (transposed) {
    term.left = stored(right);
    term.right = stored(left);
  }
  term.rounded = module.embedding && !module.magnitude;
  if (module.magnitude) term.magnitude = stored(*module.magnitude);
  put(weight, std::move(term));
  if (!module.bias) return;
  put(tensor(name + ".bias"), {.left = stored(*module.bias),
                               .right = {},
                               .transposed = false,
                               .scale = scale,
                               .magnitude = {}});
}

void Adding::put_whole(const std::string& name, const Tensor& whole) {
  Tensor& old = tensor(name);
  if (has_more_rows(old, whole)) {
    grown_.insert({old.shape[0], whole.shape[0]});
    old.shape = whole.shape;
  }
  if (old.shape != whole.shape)
    throw unfaithful_error({adapter_.catalog.path, name},
                           "the adapter has {} whole, the base's is {}",
                           shape_text(whole.shape), shape_text(old.shape));
  const Extent& from = whole.pieces.at(0).extent;
  const File& file = adapter_.catalog.files.at(from.file);
  const bool plain = file.codec == Codec::kRaw && from.strides.empty() &&
                     whole.pieces.size() == 1 && !whole.pieces[0].transform;
  const bool casts =
      reshard::is_float(whole.dtype) && reshard::is_float(old.dtype);
  if (!plain || (whole.dtype != old.dtype && !casts))
    throw unfaithful_error({file.path, whole.name},
                           "{}, and not stored in one piece: it can't take "
                           "the place of the base's {}",
                           ckpt::name(whole.dtype), ckpt::name(old.dtype))
        .with_hint("`ckpt convert ADAPTER DST --to safetensors` first");
  const auto& made = *made_.emplace_back(std::make_unique<reshard::Borrowed>(
      file, from.offset, whole.dtype, old.dtype));
  put_file(old, made, file.path);
}

std::string Adding::follow_tokens() {
  if (grown_.empty()) return {};
  const auto [before, rows] = *grown_.begin();
  for (const Tensor& tensor : base_.tensors)
    if (has_row_for_each_token(tensor.name) && !tensor.shape.empty() &&
        tensor.shape[0] == before)
      throw unfaithful_error(
          {adapter_.catalog.path, tensor.name},
          "the adapter has tokens of {} rows, and this table of the base has "
          "{}: it is not in the adapter",
          rows, before)
          .with_hint(
              "save the adapter with both the embedding and the head "
              "(save_embedding_layers=True)");
  if (grown_.size() > 1)
    throw unfaithful_error({adapter_.catalog.path, {}},
                           "the adapter's embedding and head have {} and {} "
                           "rows",
                           rows, std::prev(grown_.end())->second)
        .with_hint("save the adapter again: they belong to one vocabulary");
  follow_rows_of(base_, before, rows);
  return fmt::format(
      "the vocabulary has {} rows, the base's has {}: vocab_size follows; the "
      "tokenizer that goes with it is the adapter's",
      rows, before);
}

uint32_t Adding::first_file() {
  if (!first_) {
    first_ = static_cast<uint32_t>(base_.files.size());
    base_.files.insert(base_.files.end(), adapter_.catalog.files.begin(),
                       adapter_.catalog.files.end());
  }
  return *first_;
}

void Adding::put_file(Tensor& tensor, const reshard::Made& made,
                      const std::string& path) {
  const auto file = static_cast<uint32_t>(base_.files.size());
  base_.files.push_back(reshard::made_file(made, path, byte_size(tensor)));
  tensor.grid = {};
  tensor.pieces = {{.box = Box::whole(tensor.shape),
                    .flat = {},
                    .extent = {.offset = 0, .strides = {}, .file = file}}};
  tensor.tie = 0;
}

Tensor& Adding::tensor(const std::string& name) {
  return base_.tensors.at(place_.at(name));
}

StoredMatrix Adding::stored(const Tensor& tensor) const {
  return {tensor, adapter_.catalog.files};
}

// Every matrix except a square one shows it.
bool Adding::is_transposed(const std::string& name, const peft::Module& module,
                           const Tensor& weight) const {
  if (module.embedding) return true;
  if (weight.shape.size() != 2) return false;
  const uint64_t in = module.a->shape[1], out = module.b->shape[0];
  if (in != out) return weight.shape == Shape{in, out};
  if (base_.family.empty()) return adapter_.config.fan_in_fan_out;
  return is_conv1d(base_, name);
}

void Adding::put(Tensor& tensor, LowRankTerm term) {
  first_file();
  term.allow_nonfinite = allow_nonfinite_;
  put_made(tensor, std::make_unique<reshard::LowRank>(
                       StoredMatrix(as_matrix(tensor), base_.files),
                       std::move(term), tensor.name));
}

void Adding::put_made(Tensor& tensor, std::unique_ptr<reshard::Made> sum) {
  const auto& made = *made_.emplace_back(std::move(sum));
  put_file(tensor, made, base_.files.at(tensor.pieces.at(0).extent.file).path);
}

}  // namespace ckpt::library
