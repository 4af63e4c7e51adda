// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/canonical/adapter_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/run_config.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"
#include "lib/text/json.h"

namespace ckpt::megatron {
namespace {

using families::View;

constexpr char kRanks[] = "tensor_model_parallel_size";
constexpr char kLegacy[] = "megatron_legacy";
constexpr std::string_view kModule = ".linear_fc1.adapter.";
constexpr std::string_view kOut = "linear_out.weight";
constexpr uint64_t kAnyPieces = UINT64_MAX;

// fc1 may be fused: [gate; up] is the same for all ranks, but the rows of a
// module without a gate are cut in halves, too.
enum class Rows : uint8_t { kOther, kHalved, kFused };

Rows rows_of(std::string_view name) {
  const size_t at = name.rfind(kModule);
  if (at == name.npos || !name.ends_with(kOut)) return Rows::kOther;
  std::string_view part = name.substr(at + kModule.size());
  part.remove_suffix(kOut.size());
  if (part.empty()) return Rows::kFused;
  part.remove_suffix(1);
  return is_halved_part(part, false) ? Rows::kHalved : Rows::kOther;
}

std::optional<bool> is_gated(const Catalog& source) {
  if (const auto gated = facts_of(source).gated) return gated;
  const families::Config config = run_config(source);
  const auto found = config.find("model.gated_linear_unit");
  if (found == config.end()) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(&found->second)) return *flag;
  return std::nullopt;
}

// The tensors whose order depends on the ranks.
std::vector<Tensor*> dependent(Catalog& source) {
  std::vector<Tensor*> found;
  std::optional<bool> gated;
  bool asked = false;
  for (Tensor& tensor : source.tensors) {
    const Rows rows = rows_of(tensor.name);
    if (rows == Rows::kFused && !asked) gated = is_gated(source), asked = true;
    if (rows == Rows::kHalved || (rows == Rows::kFused && gated == false))
      found.push_back(&tensor);
  }
  return found;
}

void arrange(const Catalog& source, Tensor& tensor, uint64_t from,
             uint64_t to) {
  const Key key = parse_key(tensor.name);
  if (key.is_expert())
    throw unfaithful_error({source.path, tensor.name},
                           "an adapter of experts, whose rows depend on their "
                           "own number of ranks, can't go from {} "
                           "tensor-parallel ranks to {}",
                           from, to)
        .with_hint("add the adapter to its base with Megatron-Bridge first");
  if (tensor.shape.size() != key.axes() + size_t{2})
    throw unfaithful_error({source.path, tensor.name},
                           "its shape {} is not a matrix: rows for {} "
                           "tensor-parallel ranks can't be arranged for {}",
                           to_string(tensor.shape), from, to)
        .with_hint("--model-only leaves the optimizer out");
  check_halves(source, tensor, from);
  check_halves(source, tensor, to);
  halved(halved(View::of(tensor), from, true), to, false)
      .into(tensor, kAnyPieces);
}

}  // namespace

bool is_halved_part(std::string_view part, bool in) {
  return !in && (part == "adapter_gate" || part == "adapter_up");
}

View halved(const View& rows, uint64_t ranks, bool back) {
  const Shape& shape = rows.shape();
  const size_t axes = shape.size() - 2;
  Shape cut;
  for (size_t d = 0; d < axes; ++d) cut.push_back(shape[d]);
  cut.push_back(back ? 2 : ranks);
  cut.push_back(back ? ranks : 2);
  cut.push_back(shape[axes] / (2 * ranks));
  cut.push_back(shape[axes + 1]);
  std::vector<uint32_t> order(cut.size());
  std::iota(order.begin(), order.end(), 0U);
  std::swap(order[axes], order[axes + 1]);
  return rows.reshape(cut).permute(order).reshape(shape);
}

void check_halves(const Catalog& source, const Tensor& tensor, uint64_t ranks) {
  const uint64_t rows = tensor.shape[tensor.shape.size() - 2];
  if (ranks != 0 && rows / 2 % ranks == 0 && rows % 2 == 0) return;
  throw unfaithful_error({source.path, tensor.name},
                         "{} rows can't be cut in two halves for each of {} "
                         "tensor-parallel ranks, as Megatron-Bridge does",
                         rows, ranks)
      .with_hint("--tp N with twice N a divisor of its rows");
}

uint64_t adapter_ranks(const Catalog& source) {
  if (source.format == kLegacy) return 1;
  if (const auto tp = facts_of(source).tp) return *tp;
  return families::whole_number(run_config(source),
                                std::string("model.") + kRanks)
      .value_or(0);
}

void note_adapter_ranks(Catalog& source, uint64_t ranks) {
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id node =
      pickle::from_json(*document, nlohmann::json{{kRanks, ranks}});
  std::erase_if(source.objects,
                [](const Object& object) { return object.name == kArgs; });
  source.objects.push_back(
      {.name = kArgs, .document = std::move(document), .node = node});
}

void arrange_adapters(Catalog& source, const Layout& layout) {
  const std::vector<Tensor*> tensors = dependent(source);
  if (tensors.empty()) return;
  load_objects(source);
  const uint64_t to = std::max<uint32_t>(1, layout.topology.tp);
  const uint64_t from = adapter_ranks(source);
  const bool args = facts_of(source).tp.has_value();
  if (from == 0)
    throw unfaithful_error({source.path, tensors.front()->name},
                           "the order of its rows depends on the number of "
                           "tensor-parallel ranks, and neither args nor {} "
                           "say it",
                           kRunConfigFile)
        .with_hint(std::string("put the ") + kRunConfigFile +
                   " that it was trained with beside the checkpoint's files");
  if (from == to) return;
  locate(source);
  for (Tensor* tensor : tensors) arrange(source, *tensor, from, to);
  if (!args) note_adapter_ranks(source, to);
  source.assumptions.push_back(fmt::format(
      "{} adapters of gate and up: rows for {} tensor-parallel ranks, arranged "
      "for {}",
      tensors.size(), from, to));
}

void refuse_adapters(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    if (rows_of(tensor.name) != Rows::kOther && source.format != kLegacy)
      throw unfaithful_error({source.path, tensor.name},
                             "an adapter of Megatron-Bridge's, which has no "
                             "place in ranks' files: Bridge does not write "
                             "them")
          .with_hint(
              "ckpt convert SRC DST --to megatron_torch_dist, or add the "
              "adapter to its base");
}

void refuse_kinds(const Catalog& source) {
  for (const Tensor& tensor : source.tensors)
    for (const std::string_view kind :
         {".self_attention_global.", ".self_attention_sliding."})
      if (tensor.name.find(kind) != tensor.name.npos)
        throw unfaithful_error(
            {source.path, tensor.name},
            "is Gemma 4's, which Megatron-Bridge alone builds: it does not "
            "write ranks' files")
            .with_hint("ckpt convert SRC DST --to megatron_torch_dist");
}

}  // namespace ckpt::megatron
