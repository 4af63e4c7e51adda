// SPDX-License-Identifier: Apache-2.0
#include "formats/torch/rank_shares.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "formats/fsdp/flat_params.h"
#include "lib/text/number.h"

namespace ckpt::torch {
namespace {

uint64_t volume_of(const Shape& shape) {
  return element_count(shape).value_or(0);
}

bool is_flat(const NamedTensor& tensor) {
  const std::string_view name = tensor.name;
  const size_t dot = name.rfind('.');
  return tensor.kind != Kind::optim && tensor.ref.distributed &&
         tensor.ref.global_shape().size() == 1 &&
         fsdp::is_flat_leaf(dot == name.npos ? name : name.substr(dot + 1));
}

// True if the elements of `view` are some of those of `whole`.
bool lies_in(const TensorRef& view, const TensorRef& whole) {
  if (view.storage != whole.storage || view.dtype != whole.dtype) return false;
  const uint64_t item = element_size(view.dtype);
  const uint64_t begin = view.extent.offset;
  const uint64_t first = whole.extent.offset;
  return view.extent.strides.empty() && whole.extent.strides.empty() &&
         begin >= first &&
         begin + volume_of(view.shape) * item <=
             first + volume_of(whole.shape) * item;
}

}  // namespace

class RankShares::Survey {
 public:
  Survey(const std::vector<RankFile>& files, size_t ranks) : ranks_(ranks) {
    for (const RankFile& file : files) take_distributed(*file.tree);
    for (const RankFile& file : files) {
      std::vector<const TensorRef*> flats;
      for (const NamedTensor& tensor : file.tree->tensors)
        if (is_flat(tensor)) flats.push_back(&tensor.ref);
      for (const NamedTensor& tensor : file.tree->tensors)
        if (!tensor.ref.distributed) take_plain(file.rank, tensor, flats);
    }
    for (const auto& [name, seen] : plain_) {
      if (is_view(seen))
        views_.push_back(name);
      else if (seen.first->kind == Kind::model)
        shapes_.insert(seen.first->ref.shape);
    }
    std::ranges::sort(views_, {}, [&](const std::string& name) {
      return plain_.at(name).order;
    });
  }

  void decide(RankShares& out) const {
    for (const auto& [name, seen] : plain_) {
      const Share share = share_of(seen);
      if (share != Share::kReplica) out.shares_.emplace(name, share);
      if (share == Share::kPart) out.lengths_.emplace(name, *length_of(seen));
    }
  }

 private:
  // A plain tensor of one name, in all files.
  struct Seen {
    const NamedTensor* first = nullptr;
    size_t order = 0;  // of appearance
    size_t files = 0;
    bool same_shape = true;
    bool vectors = true;             // of one dimension everywhere
    size_t views = 0;                // files in which it is one
    size_t empty = 0;                // … in which it has no elements
    std::vector<uint64_t> elements;  // of vectors, by rank; 0 if it has none
  };

  void take_distributed(const Tree& tree) {
    for (const NamedTensor& tensor : tree.tensors) {
      if (tensor.kind == Kind::optim && !tensor.param.empty())
        params_.insert(tensor.param);
      if (!tensor.ref.distributed) continue;
      if (tensor.kind == Kind::optim)
        states_.insert(tensor.param);
      else
        models_.insert(tensor.name);
      if (is_flat(tensor) && known_flats_.insert(tensor.name).second)
        flats_.emplace_back(tensor.name, tensor.ref.global_shape()[0]);
    }
  }

  // `flats`: the parts of flat parameters in the same file.
  void take_plain(size_t rank, const NamedTensor& tensor,
                  std::span<const TensorRef* const> flats) {
    Seen& seen = plain_[tensor.name];
    if (seen.first == nullptr) {
      seen.first = &tensor;
      seen.order = plain_.size();
    }
    const Shape& shape = tensor.ref.shape;
    ++seen.files;
    seen.same_shape = seen.same_shape && shape == seen.first->ref.shape;
    seen.vectors = seen.vectors && shape.size() == 1;
    if (shape.size() != 1) return;
    if (rank < ranks_) {
      seen.elements.resize(ranks_);
      seen.elements[rank] = volume_of(shape);
    }
    if (tensor.kind == Kind::optim) return;
    if (volume_of(shape) == 0)
      ++seen.empty;
    else if (std::ranges::any_of(flats, [&](const TensorRef* flat) {
               return lies_in(tensor.ref, *flat);
             }))
      ++seen.views;
  }

  static bool is_view(const Seen& seen) {
    return seen.views > 0 && seen.views + seen.empty == seen.files;
  }

  // The length of the vector that the ranks share; nothing if the lengths don't
  // show that they do.
  std::optional<uint64_t> length_of(const Seen& seen) const {
    if (ranks_ < 2 || !seen.vectors) return std::nullopt;
    const uint64_t sum =
        std::reduce(seen.elements.begin(), seen.elements.end(), uint64_t{0});
    const auto number = text::number(seen.first->param);
    if (number && *number < views_.size() && params_.size() == views_.size() &&
        plain_.at(views_[*number]).elements == seen.elements)
      return sum;
    for (size_t k = 0; k < flats_.size(); ++k) {
      const auto& [name, length] = flats_[k];
      const bool meant = number
                             ? *number == k && params_.size() == flats_.size()
                             : name == seen.first->param ||
                                   name == "model." + seen.first->param;
      if (!meant) continue;
      // Each rank has one length, the last ones padded to it.
      const uint64_t even = length / ranks_ + (length % ranks_ == 0 ? 0 : 1);
      const bool padded = std::ranges::all_of(
          seen.elements, [&](uint64_t one) { return one == even; });
      if (padded || sum == length) return length;
    }
    return std::nullopt;
  }

  bool is_distributed_parameter(const std::string& param) const {
    return models_.contains(param) || models_.contains("model." + param);
  }

  // State that belongs to a part of its parameter. Where the parameters are
  // numbered, one of the model's own plain tensors may be the one.
  bool is_of_part(const Seen& seen) const {
    const NamedTensor& tensor = *seen.first;
    if (states_.contains(tensor.param)) return true;
    if (!text::number(tensor.param))
      return is_distributed_parameter(tensor.param);
    return !models_.empty() && !shapes_.contains(tensor.ref.shape);
  }

  Share share_of(const Seen& seen) const {
    const NamedTensor& tensor = *seen.first;
    if (is_view(seen)) return Share::kView;
    if (tensor.kind == Kind::model) return Share::kReplica;
    if (tensor.kind == Kind::optim && length_of(seen)) return Share::kPart;
    if (seen.files < 2) return Share::kReplica;
    const bool scalar = seen.same_shape && volume_of(tensor.ref.shape) <= 1;
    if (tensor.kind == Kind::other)
      return scalar ? Share::kReplica : Share::kOwn;
    if (scalar) return Share::kReplica;
    return !seen.same_shape || is_of_part(seen) ? Share::kOwn : Share::kReplica;
  }

  size_t ranks_;
  std::vector<std::pair<std::string, uint64_t>> flats_;  // name, length
  std::set<std::string> known_flats_;
  std::set<std::string> models_;  // distributed tensors of the model
  std::set<std::string> states_;  // parameters with distributed states
  std::set<std::string> params_;  // all that have states
  std::map<std::string, Seen> plain_;
  std::vector<std::string> views_;  // as they come in the files
  std::set<Shape> shapes_;          // of the model's plain tensors
};

RankShares::RankShares(const std::vector<RankFile>& files, size_t ranks) {
  Survey(files, ranks).decide(*this);
}

Share RankShares::of(const NamedTensor& found) const {
  if (found.ref.distributed) return Share::kReplica;
  const auto at = shares_.find(found.name);
  return at == shares_.end() ? Share::kReplica : at->second;
}

uint64_t RankShares::length(const std::string& name) const {
  return lengths_.at(name);
}

}  // namespace ckpt::torch
