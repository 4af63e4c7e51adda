// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "containers/safetensors/file_plan.h"
#include "containers/safetensors/header.h"
#include "containers/torch/tree.h"
#include "formats/target.h"
#include "formats/vllm/config.h"
#include "formats/vllm/fuse.h"
#include "formats/vllm/layout.h"
#include "formats/vllm/locate.h"
#include "formats/vllm/vllm.h"
#include "lib/text/format.h"
#include "models/rules.h"

namespace ckpt::vllm {
namespace {

using formats::Cut;
using Severity = Problem::Severity;

// What vLLM's example for saving uses.
constexpr uint64_t kDefaultPart = uint64_t{5} << 30;

class Builder {
 public:
  Builder(const Catalog& source, const Layout& layout)
      : source_(source), layout_(layout) {
    facts_.path = source.path;
    facts_.ranks = layout.topology.tp;
    facts_.whole_experts = layout.topology.ep > 1;
    facts_.config = config_of(source);
    for (const Tensor& tensor : source.tensors)
      by_name_.emplace(tensor.name, &tensor);
  }

  Target build() {
    start_catalog();
    for (const Tensor& tensor : source_.tensors) add_cut(tensor);
    for (uint32_t rank = 0; rank < facts_.ranks; ++rank) add_rank(rank);
    leave_objects();
    formats::copy_sidecars(source_, true, {}, target_);
    return std::move(target_);
  }

 private:
  Catalog& catalog() { return target_.catalog; }

  void start_catalog() {
    catalog() = formats::catalog_like(source_, kFormat);
    catalog().dialect = kFormat;
    catalog().topology.tp = facts_.ranks;
    if (facts_.whole_experts) catalog().topology.ep = facts_.ranks;
  }

  void add_cut(const Tensor& tensor) {
    torch::check_materialisable(tensor, source_);
    facts_.queries.reset();
    const auto output = by_name_.find(output_of(tensor.name));
    if (output != by_name_.end() && output->second->shape.size() == 2)
      facts_.queries = output->second->shape[1];
    const uint32_t held = source_.format == kFormat ? source_.topology.tp : 1;
    auto cut = wanted_cut(tensor, held, facts_);
    if (!cut)
      throw families::no_rule_error(source_.path, tensor, source_.family,
                                    facts_.ranks);
    const bool packed = !cut->whole() && element_size(tensor.dtype) == 0;
    if (packed || !formats::fits(*cut, tensor.shape, facts_.ranks))
      throw unfaithful_error({source_.path, tensor.name},
                             "{} ranks can't share dimension {} of {} {}",
                             facts_.ranks, cut->dim, name(tensor.dtype),
                             to_string(tensor.shape))
          .with_hint(
              "give another --tp: one that divides heads, widths and "
              "the padded vocabulary");
    if (cut->segments.size() == 3 && cut->segments[1].repeat > 1 && !told_) {
      told_ = true;
      target_.assumptions.push_back(fmt::format(
          "each key/value head is on {} of {} ranks: num_key_value_heads",
          cut->segments[1].repeat, facts_.ranks));
    }
    cuts_.push_back(std::move(*cut));
    firsts_.push_back(
        is_first_only(tensor.name, tensor.dtype, tensor.shape, facts_));
  }

  // A rank's tensors in the order of the catalog, starting a new part if the
  // next one would make it too large.
  void add_rank(uint32_t rank) {
    const uint64_t most =
        layout_.max_shard_size ? layout_.max_shard_size : kDefaultPart;
    std::vector<Tensor> local;  // of the part: names, dtypes, shapes
    std::vector<size_t> ids;
    uint64_t filled = 0;
    uint32_t part = 0;
    for (size_t i = 0; i < cuts_.size(); ++i) {
      Tensor tensor;
      tensor.name = source_.tensors[i].name;
      tensor.dtype = source_.tensors[i].dtype;
      tensor.shape = formats::local_shape(cuts_[i], source_.tensors[i].shape,
                                          facts_.ranks);
      const uint64_t bytes = byte_size(tensor);
      if (!local.empty() && (filled > most || bytes > most - filled)) {
        add_part(rank, part++, local, ids);
        local.clear();
        ids.clear();
        filled = 0;
      }
      local.push_back(std::move(tensor));
      ids.push_back(i);
      filled += bytes;
    }
    add_part(rank, part, local, ids);
  }

  void add_part(uint32_t rank, uint32_t part, const std::vector<Tensor>& local,
                const std::vector<size_t>& ids) {
    std::vector<std::pair<safetensors::Described, size_t>> order;
    for (size_t i = 0; i < local.size(); ++i)
      order.emplace_back(safetensors::describe(local[i]), ids[i]);
    std::ranges::sort(order, {}, [](const auto& item) {
      return std::tuple(safetensors::dtype_rank(item.first.dtype),
                        item.first.name);
    });
    std::vector<safetensors::Described> described;
    for (const auto& item : order) described.push_back(item.first);
    std::string header = safetensors::encode_header(described, std::nullopt);
    const auto number = static_cast<uint32_t>(catalog().files.size());
    uint64_t at = header.size();
    TargetFile& file = target_.files.emplace_back();
    for (const auto& [entry, id] : order) {
      if (rank > 0 && firsts_[id])
        file.shared.push_back({at, zeros(entry.bytes)});
      else
        formats::add_target_pieces(cuts_[id], facts_.ranks, rank, number, at,
                                   catalog().tensors[id]);
      const auto end = checked_add(at, entry.bytes);
      if (!end)
        throw unfaithful_error({file_name(rank, part), {}},
                               "file size overflows 64 bits");
      at = *end;
    }
    file.path = file_name(rank, part);
    file.size = at;
    file.literals.push_back({0, std::move(header)});
    catalog().files.push_back({.path = file.path, .size = at});
  }

  // One buffer for all of the same size.
  std::shared_ptr<const std::string> zeros(uint64_t bytes) {
    auto& known = zeros_[bytes];
    if (!known) known = std::make_shared<const std::string>(bytes, '\0');
    return known;
  }

  void leave_objects() {
    for (const Object& object : source_.objects) {
      const bool note = object.name == safetensors::kMetadata ||
                        object.name == safetensors::kIndexMetadata;
      target_.problems.push_back({note ? Severity::kNote : Severity::kWarning,
                                  "object_left_out",
                                  {},
                                  object.name,
                                  "vllm cannot store this value; skipped"});
    }
  }

  const Catalog& source_;
  const Layout& layout_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  Facts facts_;
  Target target_;
  std::vector<Cut> cuts_;  // one per tensor
  std::vector<bool> firsts_;
  std::unordered_map<uint64_t, std::shared_ptr<const std::string>> zeros_;
  bool told_ = false;
};

void refuse(const Catalog& source, const Layout& layout) {
  if (layout.single_file)
    throw usage_error({}, "vllm's checkpoints are directories")
        .with_hint("name a directory, or convert to safetensors for one file");
  if (layout.topology.tp == 0 || layout.topology.tp > 4096)
    throw usage_error({}, "{} ranks, vllm is written for 1 to 4096",
                      layout.topology.tp);
  if (layout.topology.ep > 1 && layout.topology.ep != layout.topology.tp)
    throw usage_error({}, "--ep {} with --tp {}", layout.topology.ep,
                      layout.topology.tp)
        .with_hint(
            "vLLM's ranks of experts are those of tensors: --ep as --tp, or "
            "--ep 1 to cut each expert");
  // Another container may have kept vLLM's names, but can't tell the parts of
  // what was fused.
  const auto own = std::ranges::find_if(source.tensors, [](const Tensor& t) {
    return t.name.ends_with(".attn._k_scale");
  });
  if (source.format != kFormat && own != source.tensors.end())
    throw unfaithful_error({source.path, own->name},
                           "is named by vLLM, whose names a {} can't tell",
                           source.format)
        .with_hint(
            "convert vLLM's directory itself, with --dialect hf to any other "
            "container");
  if (source.format != kFormat && source.dialect != "hf")
    throw unfaithful_error(
        {source.path, {}},
        "vllm is written from Hugging Face's names; these are {}",
        source.dialect.empty() ? "of no known dialect" : "of " + source.dialect)
        .with_hint("convert it to a Hugging Face directory first");
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::optim)
      throw unfaithful_error({{}, tensor.name},
                             "vllm holds weights, no optimizer state")
          .with_hint("leave it out with --model-only");
}

// vLLM saves no tensor without elements.
void drop_empty(Catalog& source) {
  const size_t dropped = std::erase_if(
      source.tensors,
      [](const Tensor& tensor) { return element_count(tensor.shape) == 0; });
  if (dropped)
    source.assumptions.push_back(fmt::format(
        "{} tensors without elements are left out, as vLLM does", dropped));
}

Catalog review(Catalog source, const Layout& layout) {
  refuse(source, layout);
  if (source.format != kFormat) source = fuse(std::move(source));
  drop_empty(source);
  return source;
}

}  // namespace

std::unique_ptr<formats::Writer> make_writer() {
  return formats::writer_of(kFormat, review, formats::build_with<Builder>);
}

}  // namespace ckpt::vllm
