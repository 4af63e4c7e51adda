// SPDX-License-Identifier: Apache-2.0
#include "formats/torch/rank_tensors.h"

#include "ckpt/error.h"
#include "formats/fsdp/expand.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

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

RankTensors::RankTensors(Catalog& catalog, const fsdp::FlatParameters* flat)
    : catalog_(catalog) {
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
  const auto [it, first] = index_.emplace(found.name, catalog_.tensors.size());
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
  const auto [it, first] = index_.emplace(tensor.name, catalog_.tensors.size());
  if (first) {
    catalog_.tensors.push_back(std::move(tensor));
    return;
  }
  Tensor& whole = catalog_.tensors[it->second];
  if (whole.dtype != tensor.dtype)
    throw input_error(where, "is {}, in other files of this directory {}",
                      name(tensor.dtype), name(whole.dtype));
  const auto end = checked_add(whole.shape[0], length);
  if (!end || !byte_size(whole.dtype, {*end}))
    throw input_error(where, "all parts together overflow");
  for (Piece& piece : tensor.pieces) {
    piece.box.offset[0] += whole.shape[0];
    whole.pieces.push_back(std::move(piece));
  }
  whole.shape[0] = *end;
}

std::unordered_set<std::string> RankTensors::finish(uint64_t ranks) const {
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
