// SPDX-License-Identifier: Apache-2.0
#include "formats/torch/rank_tensors.h"

#include <algorithm>
#include <utility>

#include "formats/fsdp/expand.h"
#include "formats/rank_share.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/unruled.h"

namespace ckpt::torch {
namespace {

using text::printable;

Tensor tensor_of(const NamedTensor& found) {
  Tensor tensor = make_tensor(found.name, found.ref);
  tensor.kind = found.kind;
  tensor.param = found.param;
  tensor.state = found.state;
  return tensor;
}

// "12" -> 12
std::optional<uint64_t> number_of(const std::string& text) {
  return text::number(text);
}

}  // namespace

RankTensors::RankTensors(Catalog& catalog, const fsdp::FlatParameters* flat,
                         const RankShares* shares, families::Rules user)
    : catalog_(catalog), shares_(shares), user_(std::move(user)) {
  if (flat == nullptr) return;
  count_ = flat->all.size();
  for (const fsdp::FlatParameter& one : flat->all) {
    keys_.insert(one.key);
    keys_.insert("model." + one.key);
    for (const fsdp::Parameter& parameter : one.parameters) {
      const std::string name =
          fsdp::with_parameter(one.key, one.leaf, parameter.name);
      views_.insert(name);
      views_.insert("model." + name);
    }
  }
}

bool RankTensors::is_part(const NamedTensor& found) const {
  if (found.ref.distributed || found.ref.shape.size() != 1) return false;
  if (found.kind != Kind::optim) return keys_.contains(found.name);
  if (found.ref.shape[0] <= 1) return false;  // a step
  if (keys_.contains(found.param)) return true;
  const auto number = number_of(found.param);
  return number && *number < count_;
}

void RankTensors::add(const std::string& path, uint64_t rank,
                      const NamedTensor& found) {
  const bool view = !found.ref.distributed && found.kind != Kind::optim &&
                    found.ref.shape.size() == 1 && views_.contains(found.name);
  if (view && !is_part(found)) return;
  Tensor tensor = tensor_of(found);
  if (is_part(found)) return add_part(path, rank, std::move(tensor));
  const Share share = shares_ ? shares_->of(found) : Share::kReplica;
  if (share == Share::kView) return;
  if (share == Share::kPart) {
    if (!index_.contains(found.name)) joined_.push_back(found.name);
    return join({path, printable(found.name)}, std::move(tensor));
  }
  if (share == Share::kOwn) return add_own(path, std::move(tensor));
  const auto [it, first] = index_.emplace(found.name, catalog_.tensors.size());
  // A number without dimensions can't be a slice.
  if (!found.ref.distributed && !found.ref.shape.empty())
    plain_[found.name].resize(plain_[found.name].size() + tensor.pieces.size(),
                              rank);
  if (first) {
    catalog_.tensors.push_back(std::move(tensor));
    return;
  }
  Tensor& whole = catalog_.tensors[it->second];
  if (whole.dtype != tensor.dtype || whole.shape != tensor.shape)
    throw input_error({path, printable(found.name)},
                      "is {} {}, in other files of this directory {} {}",
                      name(tensor.dtype), to_string(tensor.shape),
                      name(whole.dtype), to_string(whole.shape));
  whole.pieces.insert(whole.pieces.end(), tensor.pieces.begin(),
                      tensor.pieces.end());
}

void RankTensors::add_part(const std::string& path, uint64_t rank,
                           Tensor tensor) {
  const uint64_t length = tensor.shape[0];
  Part& part = parts_[tensor.name];
  const Where where{path, printable(tensor.name)};
  if (part.ranks != rank)
    throw input_error(where, "rank {} has a part of it, rank {} has none", rank,
                      part.ranks);
  if (rank == 0) part.first = part.last = length;
  // ceil(length / ranks) each; a shorter part is the last that has any.
  if (length > part.last || (part.last < part.first && length > 0))
    throw input_error(where, "rank {} holds {} elements, rank {} {}", rank,
                      length, rank - 1, part.last)
        .with_hint(
            "all parts but the last have one length: is a file of "
            "another checkpoint among them?");
  ++part.ranks;
  part.last = length;
  join(where, std::move(tensor));
}

void RankTensors::join(const Where& where, Tensor tensor) {
  const auto [it, first] = index_.emplace(tensor.name, catalog_.tensors.size());
  if (first) {
    catalog_.tensors.push_back(std::move(tensor));
    return;
  }
  Tensor& whole = catalog_.tensors[it->second];
  if (whole.dtype != tensor.dtype)
    throw input_error(where, "is {}, in other files of this directory {}",
                      name(tensor.dtype), name(whole.dtype));
  const auto end = checked_add(whole.shape[0], tensor.shape[0]);
  if (!end || !byte_size(whole.dtype, {*end}))
    throw input_error(where, "all parts together overflow");
  for (Piece& piece : tensor.pieces) {
    piece.box.offset[0] += whole.shape[0];
    whole.pieces.push_back(std::move(piece));
  }
  whole.shape[0] = *end;
}

// The file's name keeps the ranks apart: optim_rank1.state.0.absmax.
void RankTensors::add_own(const std::string& path, Tensor tensor) {
  const std::string file(io::base_name(path));
  const std::string stem = file.substr(0, file.rfind('.')) + ".";
  tensor.name = stem + tensor.name;
  if (!tensor.param.empty()) tensor.param = stem + tensor.param;
  if (!index_.emplace(tensor.name, catalog_.tensors.size()).second)
    throw input_error({path, printable(tensor.name)},
                      "is in two files of this directory");
  ++counts_.own;
  catalog_.tensors.push_back(std::move(tensor));
}

// A rank's run of a flat parameter's state is padded as the parameter is.
void RankTensors::drop_padding(Tensor& whole, uint64_t length) {
  if (whole.shape[0] <= length) return;
  Tensor rest = whole;
  rest.shape = {whole.shape[0] - length};
  rest.pieces.clear();
  std::vector<Piece> kept;
  for (Piece& piece : whole.pieces) {
    const uint64_t begin = piece.box.offset[0];
    const uint64_t end = begin + piece.box.shape[0];
    if (end > length) {
      Piece tail = piece;
      const uint64_t from = std::max(begin, length);
      const uint64_t stride = piece.extent.strides.empty()
                                  ? element_size(whole.dtype)
                                  : piece.extent.strides[0];
      tail.box.offset[0] = from - length;
      tail.box.shape[0] = end - from;
      tail.extent.offset += (from - begin) * stride;
      rest.pieces.push_back(std::move(tail));
    }
    if (begin >= length) continue;
    piece.box.shape[0] = std::min(end, length) - begin;
    kept.push_back(std::move(piece));
  }
  whole.pieces = std::move(kept);
  whole.shape[0] = length;
  catalog_.redundant.push_back({.tensor = std::move(rest),
                                .value = 0.0,
                                .same_as = {},
                                .why = "it pads a flat parameter"});
}

std::unordered_set<std::string> RankTensors::finish(uint64_t ranks) {
  for (Tensor& tensor : catalog_.tensors)
    if (const auto at = plain_.find(tensor.name); at != plain_.end())
      formats::share_by_rule(tensor, at->second, ranks, user_, catalog_);
  for (const std::string& name : joined_)
    drop_padding(catalog_.tensors[index_.at(name)], shares_->length(name));
  counts_.parts = joined_.size();
  std::unordered_set<std::string> padded;
  for (const auto& [name, part] : parts_) {
    if (part.ranks != ranks)
      throw input_error({catalog_.path, printable(name)},
                        "{} of {} ranks have a part of it", part.ranks, ranks);
    if (part.last == part.first && part.ranks > 1) padded.insert(name);
  }
  return padded;
}

}  // namespace ckpt::torch
