// SPDX-License-Identifier: Apache-2.0
#include "formats/fairseq2/lost_ranks.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ckpt/error.h"
#include "formats/fairseq2/layout.h"
#include "lib/cuts.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

// No more ranks than this share the rows of a layer.
constexpr uint64_t kMostRanks = 1 << 16;

// How many of a tensor's rows there are, and how many another tensor promises.
// Both for one tensor-parallel rank.
struct Shared {
  const Tensor* tensor = nullptr;
  const Tensor* other = nullptr;
  uint64_t have = 0;
  uint64_t promised = 0;
};

class Pairs {
 public:
  explicit Pairs(const Catalog& catalog) : tp_(catalog.topology.tp) {
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) by_name_.emplace(tensor.name, &tensor);
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) look(tensor);
  }

  const std::vector<Shared>& all() const { return pairs_; }

 private:
  const Tensor* find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  void look(const Tensor& tensor) {
    const auto stem = [&](std::string_view suffix) {
      return std::string(
          tensor.name.substr(0, tensor.name.size() - suffix.size()));
    };
    constexpr std::string_view kOutput = ".output_proj.weight";
    constexpr std::string_view kMean = ".running_mean";
    if (tensor.name.ends_with(kOutput)) {
      for (const char* inner : {".q_proj.weight", ".inner_proj.weight"})
        if (const Tensor* input = find(stem(kOutput) + inner)) {
          rows_are_columns(tensor, *input);
          rows_are_columns(*input, tensor);
        }
    } else if (tensor.name.ends_with(kMean) && tensor.shape.size() == 1) {
      if (const Tensor* weight = find(stem(kMean) + ".weight"))
        if (weight->shape.size() == 1 && !weight->dp_replicated)
          add(*weight, tensor, tensor.shape[0]);
    }
  }

  void rows_are_columns(const Tensor& rows, const Tensor& columns) {
    if (rows.shape.size() == 2 && columns.shape.size() == 2)
      add(rows, columns, columns.shape[1]);
  }

  void add(const Tensor& tensor, const Tensor& other, uint64_t promised) {
    Shared pair{&tensor, &other, tensor.shape[0], promised};
    if (tensor.tp.state == TpRule::State::kSplit && tensor.tp.dim == 0) {
      if (promised % tp_ != 0) return;
      pair.have /= tp_;
      pair.promised /= tp_;
    }
    pairs_.push_back(pair);
  }

  const uint64_t tp_;
  std::unordered_map<std::string_view, const Tensor*> by_name_;
  std::vector<Shared> pairs_;
};

// True if `promised` rows over `ranks` ranks give the first `dp` of them the
// rows that there are.
bool fits(const Shared& pair, uint64_t dp, uint64_t ranks) {
  return cuts::chunk(pair.promised, ranks, dp).begin == pair.have;
}

}  // namespace

void check_rows(const Grid& grid, const Catalog& catalog) {
  const Pairs pairs(catalog);
  const uint64_t dp = grid.dp();
  const Shared* shown = nullptr;
  for (const Shared& pair : pairs.all())
    if (pair.have < pair.promised && !shown) shown = &pair;
  if (!shown) return;
  uint64_t ranks = dp + 1;
  const auto all_fit = [&] {
    return std::ranges::all_of(
        pairs.all(), [&](const Shared& pair) { return fits(pair, dp, ranks); });
  };
  while (ranks < kMostRanks && !all_fit()) ++ranks;
  if (ranks == kMostRanks) return;
  const std::string& last = grid.files.at(0).at(0).back();
  throw input_error(
      {io::join(io::parent(last), numbered("sdp_", dp) + ".pt"),
       shown->tensor->name},
      "is missing: {} ranks hold {} of its {} rows, as {} shows; there were at "
      "least {} ranks",
      dp, shown->have, shown->promised, shown->other->name, ranks)
      .with_hint(
          "fetch the files of the last ranks; without them no tensor is "
          "whole");
}

}  // namespace ckpt::fairseq2
