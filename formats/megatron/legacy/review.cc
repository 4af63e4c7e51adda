// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/legacy/review.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/objects.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/vocab.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

bool has_rows(const Tensor& tensor, uint64_t rows) {
  const std::string& name = tensor.param.empty() ? tensor.name : tensor.param;
  return tensor.kind != Kind::other && is_vocabulary(name) &&
         !tensor.shape.empty() && tensor.shape[0] == rows;
}

uint64_t rows_of(const Catalog& catalog) {
  uint64_t rows = 0;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind != Kind::model || tensor.shape.empty()) continue;
    if (is_word_embedding(tensor.name)) return tensor.shape[0];
    if (is_vocabulary(tensor.name)) rows = tensor.shape[0];
  }
  return rows;
}

uint64_t round_up(uint64_t rows, uint64_t multiple, const Catalog& catalog) {
  const auto padded = checked_mul((rows - 1) / multiple + 1, multiple);
  if (!padded)
    throw unfaithful_error({catalog.path, {}},
                           "a vocabulary of {} rows can't be padded", rows);
  return *padded;
}

}  // namespace

void check_names(const Catalog& catalog) {
  if (catalog.format == "megatron_legacy") return;
  // Parameter groups are Megatron's own object.
  const bool known = std::ranges::any_of(
      catalog.objects,
      [](const Object& object) { return object.name == kOptimizerObject; });
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::optim && !known)
      throw unfaithful_error({catalog.path, text::printable(tensor.name)},
                             "optimizer state of {} in the form of ranks' "
                             "files can't be made",
                             catalog.format)
          .with_hint("--model-only leaves the optimizer out");
  for (const Tensor& tensor : catalog.tensors) {
    const std::string name = text::printable(tensor.name);
    if (tensor.kind != Kind::model) continue;
    const Key key = parse_key(tensor.name);
    const bool module = tp_rule(key, {}).state != TpRule::State::kUnknown ||
                        place_of(key) != Where::kAnywhere;
    if (key.axes() != 0)
      throw unfaithful_error({catalog.path, name},
                             "is stacked over layers or experts; ranks' files "
                             "have a tensor for each")
          .with_hint(
              "`ckpt reshard` writes this checkpoint for other topologies in "
              "its own format, which Megatron-Core loads");
    if (!module || (!key.layer && place_of(key) == Where::kAnywhere))
      throw unfaithful_error({catalog.path, name},
                             "is not named as Megatron's modules are")
          .with_hint(
              "ranks' files hold Megatron's modules: megatron_torch_dist has "
              "a place for what stands beside a language model, --exclude "
              "GLOB leaves it out; other families' names have to be "
              "converted first");
  }
}

void fit_vocabulary(Catalog& catalog, const Facts& facts, uint64_t tp) {
  const uint64_t rows = rows_of(catalog);
  if (rows == 0) return;
  // Without args training's multiple is unknown.
  if (!facts.vocab_multiple && rows % tp == 0) return;
  const auto multiple =
      checked_mul(facts.vocab_multiple.value_or(kUsualVocabMultiple), tp);
  if (!multiple || *multiple == 0)
    throw unfaithful_error({catalog.path, {}}, "vocabulary for tp={}", tp);
  // A vocab_size that does not explain the rows is not taken for their count.
  const auto source_multiple = checked_mul(
      facts.vocab_multiple.value_or(kUsualVocabMultiple), facts.tp.value_or(1));
  const bool known =
      facts.vocab_size.value_or(0) != 0 && source_multiple &&
      *facts.vocab_size <= rows &&
      round_up(*facts.vocab_size, *source_multiple, catalog) == rows;
  const uint64_t real = known ? *facts.vocab_size : rows;
  const uint64_t wanted = round_up(real, *multiple, catalog);
  if (wanted == rows) return;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    Tensor& tensor = catalog.tensors[i];
    if (has_rows(tensor, rows)) set_rows(catalog, tensor, wanted);
  }
  catalog.assumptions.push_back(
      wanted < rows
          ? fmt::format("vocabulary: {} of {} rows are padding (vocab_size "
                        "{}); {} of them are cut for tp={}",
                        rows - real, rows, real, rows - wanted, tp)
          : fmt::format("vocabulary: {} rows of zeros are appended to {}, for "
                        "tp={}{}",
                        wanted - rows, rows, tp,
                        known ? "" : "; args don't say how many are real"));
}

}  // namespace ckpt::megatron
