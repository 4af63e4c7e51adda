// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "api/edit/select.h"
#include "api/rank_part.h"
#include "ckpt/ckpt.h"
#include "formats/fairseq2/layout.h"
#include "formats/rank_rules.h"
#include "models/rules.h"
#include "reshard/run/read.h"

namespace ckpt {
namespace {

// Reads boxes one after another: what a rank holds, in its order. With groups,
// a rank's rows come from several places in the tensor.
std::vector<std::byte> read_boxes(const Catalog& catalog, const Tensor& tensor,
                                  const std::vector<cuts::Part>& parts,
                                  const Shape& local) {
  if (parts.size() == 1)
    return reshard::read_box(catalog, tensor, parts[0].box);
  // Parts differ in only one dimension: interleave their runs below it.
  const uint64_t element = element_size(tensor.dtype);
  std::vector<std::byte> bytes(byte_size(tensor.dtype, local).value_or(0));
  const Dims strides = row_major_strides(local);
  for (const cuts::Part& part : parts) {
    const auto piece = reshard::read_box(catalog, tensor, part.box);
    size_t d = 0;  // the first dimension that the part does not fill
    while (d + 1 < local.size() && part.box.shape[d] == local[d]) ++d;
    const uint64_t run =
        part.box.shape[d] * (d < local.size() ? strides[d] : 1) * element;
    uint64_t outer = 0, first = 0;
    for (size_t k = 0; k < local.size(); ++k)
      first += part.at[k] * strides[k] * element;
    for (uint64_t at = 0; at < piece.size(); at += run, ++outer) {
      const uint64_t to = first + (d ? outer * strides[d - 1] * element : 0);
      std::copy_n(piece.begin() + static_cast<std::ptrdiff_t>(at), run,
                  bytes.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
  return bytes;
}

void check_rank(const Topology& topology, const Rank& rank) {
  if (topology.tp == 0 || topology.pp == 0 || topology.dp == 0 ||
      topology.ep == 0 || rank.tp >= topology.tp || rank.pp >= topology.pp ||
      rank.dp >= topology.dp || rank.ep >= topology.ep)
    throw usage_error({}, "no rank tp={} pp={} dp={} ep={} in {}", rank.tp,
                      rank.pp, rank.dp, rank.ep, to_string(topology));
}

// Called before the first shard: a loader that fails amid a model has wasted
// its time.
void check_rules(const Catalog& catalog, uint32_t tp) {
  if (tp == 1) return;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.tp.state == TpRule::State::kUnknown)
      throw families::no_rule_error(catalog.path, tensor, catalog.family, tp);
    if (!fairseq2::divides(tensor.shape, tensor.tp, tp))
      throw unfaithful_error(
          {catalog.path, tensor.name},
          "dimension {} of {} is not a multiple of tp {}{}", tensor.tp.dim,
          to_string(tensor.shape), tp,
          tensor.tp.groups == 1
              ? ""
              : fmt::format(" in each of {} equal parts", tensor.tp.groups));
  }
}

}  // namespace

LazyLoad Checkpoint::lazy_load(const Topology& topology, const Rank& rank,
                               const std::vector<std::string>& keys) const {
  check_rank(topology, rank);
  std::shared_ptr<const Catalog> catalog = catalog_;
  const bool no_rules = topology.tp > 1 && formats::lacks_rank_rules(*catalog_);
  if (no_rules || catalog->archive_opener || topology.pp != 1 ||
      topology.ep != 1 || !keys.empty()) {
    auto part = std::make_shared<Catalog>(*catalog_);
    // Rules are taken from the whole model: a stage may lack what decides them.
    if (no_rules) library::add_rank_rules(*part, topology.tp);
    *part = library::rank_part(std::move(*part), topology, rank);
    if (!keys.empty()) library::keep_keys(*part, keys, *catalog_);
    locate(*part);
    catalog = std::move(part);
  }
  check_rules(*catalog, topology.tp);
  return LazyLoad(std::move(catalog), topology, rank);
}

LazyLoad::LazyLoad(std::shared_ptr<const Catalog> catalog, Topology topology,
                   Rank rank)
    : catalog_(std::move(catalog)), topology_(topology), rank_(rank) {}

std::optional<std::pair<std::string, TensorData>> LazyLoad::next() {
  if (next_ >= catalog_->tensors.size()) return std::nullopt;
  const Tensor& tensor = catalog_->tensors[next_++];
  const uint32_t tp = topology_.tp;
  Shape local = fairseq2::tp_local(tensor.shape, tensor.tp, tp);
  fairseq2::Rows rows{0, local.empty() ? 1 : local[0]};
  if (topology_.dp > 1 && !tensor.dp_replicated && !local.empty()) {
    rows = cuts::chunk(local[0], topology_.dp, rank_.dp);
    local[0] = rows.count();
  }
  TensorData data{tensor.dtype, local, {}};
  auto parts = fairseq2::place(tensor.shape, tensor.tp, tp, rank_.tp, rows);
  if (element_count(local).value_or(0))
    data.bytes = read_boxes(*catalog_, tensor, parts, local);
  return std::pair(tensor.name, std::move(data));
}

}  // namespace ckpt
