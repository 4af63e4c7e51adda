// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "ckpt/error.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/states.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

// Reads distrib_optim.pt.
class FlatReader {
 public:
  FlatReader(const LegacyRank& rank, torch::Container file, LegacyStates& out)
      : rank_(rank),
        file_(std::move(file)),
        document_(*file_.document),
        out_(out) {}

  const Document& document() const { return document_; }

  // True for the form of April 2024 and later.
  bool is_coalesced(Id optimizer) const {
    const Id mark = document_.find(optimizer, "buckets_coalesced");
    return document_.is(mark, Type::kBool) && document_.boolean(mark);
  }

  void read(Id optimizer, const std::vector<LegacyParam>& params) {
    const std::vector<LegacyBuffer> buffers = split_buffers(params);
    std::map<int64_t, Id> numbered;
    const auto pairs = document_.as_pairs(optimizer);
    for (size_t i = 0; i < pairs->size(); i += 2)
      if (document_.is((*pairs)[i], Type::kInt))
        numbered[document_.integer((*pairs)[i])] = (*pairs)[i + 1];
    if (numbered.size() != buffers.size())
      throw input_error({file_.path, {}},
                        "{} gradient buffers, the parameters fill {}",
                        numbered.size(), buffers.size());
    out_.form = LegacyStates::Form::kFlat;
    size_t next = 0;
    for (const auto& [number, node] : numbered)
      read_buffer(number, node, buffers[next++]);
  }

 private:
  // {(param dtype, grad dtype): {"param": …, "numel_unpadded": n}}
  void read_buffer(int64_t number, Id node, const LegacyBuffer& buffer) {
    const auto pairs = document_.as_pairs(node);
    if (!pairs || pairs->size() != 2)
      throw input_error(
          {file_.path, {}},
          "gradient buffer {} is not a dict of one pair of dtypes", number);
    const auto dtypes = read_dtypes((*pairs)[0]);
    if (!dtypes || dtypes->first != buffer.dtype)
      throw input_error({file_.path, {}},
                        "gradient buffer {} is of another dtype than the "
                        "parameters, {}",
                        number, name(buffer.dtype));
    if (!std::ranges::count(out_.dtypes, *dtypes))
      out_.dtypes.push_back(*dtypes);
    const Id states = (*pairs)[1];
    const auto unpadded =
        document_.as_int(document_.find(states, "numel_unpadded"));
    if (!unpadded || *unpadded < 0)
      throw input_error({file_.path, {}},
                        "gradient buffer {} has no numel_unpadded", number);
    const auto total = static_cast<uint64_t>(*unpadded);
    const BufferLayout layout = lay_out(number, buffer, total);
    const auto entries = document_.as_pairs(states);
    for (size_t i = 0; i < entries->size(); i += 2)
      if (document_.is((*entries)[i], Type::kString))
        cut(document_.text((*entries)[i]), (*entries)[i + 1], buffer, layout,
            total);
  }

  std::optional<std::pair<DType, DType>> read_dtypes(Id key) const {
    if (!document_.is(key, Type::kTuple) || document_.items(key).size() != 2)
      return std::nullopt;
    const auto param = torch::as_dtype(document_, document_.items(key)[0]);
    const auto grad = torch::as_dtype(document_, document_.items(key)[1]);
    if (!param || !grad) return std::nullopt;
    return std::pair{*param, *grad};
  }

  // The rules changed over the years; the length shows which ones apply.
  BufferLayout lay_out(int64_t number, const LegacyBuffer& buffer,
                       uint64_t total) const {
    uint64_t numel = 0;
    for (const LegacyEntry& entry : rank_.chunks[buffer.chunk])
      if (entry.tensor && !is_legacy_buffer(entry.name))
        numel += element_count(entry.tensor->shape).value_or(0);
    const uint64_t dp = rank_.facts.dp.value_or(1) * rank_.facts.cp.value_or(1);
    const BufferRules now =
        buffer_rules(rank_.facts, rank_.dir.pp, buffer.chunk, numel, dp);
    BufferRules until_core_012 = now;
    until_core_012.pad_before_shared = dp;
    BufferRules until_july_2024 = now;
    until_july_2024.align = false;
    const auto params = buffer_params(buffer);
    std::vector<uint64_t> lengths;
    for (const BufferRules& rules : {now, until_core_012, until_july_2024}) {
      BufferLayout layout = lay_out_buffer(params, rules);
      if (layout.unpadded == total) return layout;
      lengths.push_back(layout.unpadded);
    }
    throw input_error({file_.path, {}},
                      "gradient buffer {} has {} elements (numel_unpadded), "
                      "the {} parameters need {} (without alignment {})",
                      number, total, params.size(), lengths[0], lengths[2])
        .with_hint(
            "the parameters or the bucket sizes in args are others than the "
            "optimizer had; without this file, weights alone are read");
  }

  void cut(std::string_view state, Id node, const LegacyBuffer& buffer,
           const BufferLayout& layout, uint64_t total) {
    if (state == "numel_unpadded") return;
    const auto ref = torch::as_tensor(document_, node, file_.storages, state);
    if (!ref || ref->shape.size() != 1 || !ref->extent.strides.empty())
      throw input_error({file_.path, printable(state)},
                        "is not a flat tensor of a gradient buffer");
    if (ref->shape[0] < total)
      throw input_error({file_.path, printable(state)},
                        "has {} elements, numel_unpadded is {}", ref->shape[0],
                        total);
    const uint64_t item = element_size(ref->dtype);
    for (size_t i = 0; i < buffer.params.size(); ++i) {
      const LegacyParam& param = buffer.params[i];
      LocalState found{
          .chunk = param.chunk,
          .entry = param.index,
          .state = state == "param" ? "fp32_param" : std::string(state),
          .tensor = local_tensor(*ref),
          .whole = false};
      found.tensor.shape = param.shape;
      found.tensor.extent.offset += layout.joined(layout.slots[i]) * item;
      out_.states.push_back(std::move(found));
    }
  }

  const LegacyRank& rank_;
  const torch::Container file_;
  const Document& document_;
  LegacyStates& out_;
};

}  // namespace

void read_flat_states(const LegacyRank& rank,
                      const std::vector<LegacyParam>& params, Catalog& catalog,
                      const formats::ReadOptions& options, LegacyStates& out) {
  const std::string& path = rank.dir.optimizer_file;
  torch::Container file = torch::open_container(path, catalog, options);
  torch::add_globals(catalog, file.globals);
  FlatReader reader(rank, std::move(file), out);
  const auto subs = optimizers_in(reader.document(), reader.document().root());
  const auto split = split_or_throw(params, subs.size(), rank, path);
  for (size_t i = 0; i < subs.size(); ++i) {
    if (reader.document().is(subs[i], Type::kNone)) continue;
    if (!reader.is_coalesced(subs[i]))
      return tell_unread(
          catalog, path,
          "distrib_optim.pt of before April 2024 (buckets not coalesced): "
          "weights are read, the optimizer's state is not");
    reader.read(subs[i], split[i]);
  }
}

}  // namespace ckpt::megatron
