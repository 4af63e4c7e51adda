// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/flat_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/optimizer/optimizer.h"
#include "formats/runs/optimizer/order.h"
#include "formats/runs/optimizer/preorder.h"
#include "formats/runs/ranks/flat_split.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;
using RankShare = RankCatalog::Share;

const char* const kHint = "fetch the files of this save again";

uint64_t elements_of(const Parameter& parameter) {
  return element_count(parameter.shape).value_or(0);
}

// Appends one state of the parameters that a run holds one after another.
void cut_run(const Tensor& run, std::span<const Parameter> parameters,
             std::vector<Tensor>& out) {
  const uint64_t item = element_size(run.dtype);
  uint64_t begin = 0;
  for (const Parameter& parameter : parameters) {
    const uint64_t end = begin + elements_of(parameter);
    Tensor tensor = run;
    tensor.param = parameter.name;
    tensor.name = parameter.name + "." + run.state;
    tensor.shape = parameter.shape;
    tensor.pieces.clear();
    for (const Piece& part : run.pieces) {
      const uint64_t at = part.box.offset[0];
      const uint64_t from = std::max(begin, at);
      const uint64_t to = std::min(end, at + part.box.shape[0]);
      if (from >= to) continue;
      Piece piece = part;
      piece.box = Box::whole(parameter.shape);
      piece.flat = FlatRange{from - begin, to - begin};
      piece.extent.offset += (from - at) * item;
      piece.extent.strides = {};
      tensor.pieces.push_back(std::move(piece));
    }
    out.push_back(std::move(tensor));
    begin = end;
  }
}

class FlatNames {
 public:
  FlatNames(RankCatalog& ranks, const std::vector<std::string>& paths,
            std::span<const Tensor* const> model, ParameterOrder order)
      : ranks_(ranks),
        paths_(paths),
        order_(std::move(order)),
        ways_(ways_to_wrap(order_, model)) {}

  // Returns why not.
  std::string name() {
    std::string why_not = find_numbering();
    if (!why_not.empty()) return why_not;
    check_alike();
    check_replicas();
    why_not = original_ ? check_parameters() : check_units();
    if (why_not.empty()) cut();
    return why_not;
  }

  // Without names, sizes alone tell whether all parts are there.
  void check_unnamed() const {
    check_alike();
    check_replicas();
    if (are_sizes_of_parameters()) return;
    for (const RankShare& share : ranks_.shares)
      if (const auto rank = rank_without(share))
        throw input_error({paths_[*rank], label(share)},
                          "is not there, but in the files of other ranks")
            .with_hint(kHint);
  }

 private:
  const Tensor& tensor_of(const RankShare& share) const {
    return ranks_.catalog.tensors[share.tensor];
  }
  uint64_t number_of(const RankShare& share) const {
    return *whole_number(tensor_of(share).param);
  }

  // The place of its unit, or of its parameter in the order.
  uint64_t place_of(uint64_t number) const {
    if (!numbering_) return number;
    const auto known = numbering_->owner.find(number);
    return known == numbering_->owner.end() ? UINT64_MAX : known->second;
  }
  uint64_t place_of(const RankShare& share) const {
    return place_of(number_of(share));
  }

  // "model.norm.weight.exp_avg"; by number where nothing names it.
  std::string label(const RankShare& share) const {
    const Tensor& tensor = tensor_of(share);
    const uint64_t place = place_of(share);
    if (!original_ || place >= order_.parameters.size())
      return printable(tensor.name);
    return printable(order_.parameters[place].name + "." + tensor.state);
  }

  // What the optimizer counts. Returns the reason if nothing fits.
  std::string find_numbering() {
    std::optional<Groups> groups;
    if (ranks_.document)
      groups =
          read_groups(*ranks_.document, ranks_.document->root(), paths_[0]);
    if (!groups) return "its groups do not number parameters";
    size_t count = 0;
    for (const Group& group : *groups) count += group.numbers.size();
    for (const RankShare& share : ranks_.shares)
      if (number_of(share) >= count)
        return fmt::format("there is a parameter {} of {}", number_of(share),
                           count);
    if (groups->size() == 1) {
      const auto fits = [&](const auto& way) { return way.size() == count; };
      const auto way = std::ranges::find_if(ways_, fits);
      if (way != ways_.end() && !are_uneven()) {
        units_ = &*way;
        either_ = count == order_.parameters.size();
        return {};
      }
      original_ = count == order_.parameters.size();
      if (original_) return {};
    }
    std::string why_not;
    numbering_ = only_numbering(ranks_, *groups, order_, ways_, why_not);
    if (!numbering_ && groups->size() == 1)
      return fmt::format(
          "{} flat parameters, the model has {} layers and {} parameters",
          count, ways_[0].size() - (ways_[0][0].name.empty() ? 1 : 0),
          order_.parameters.size());
    if (!numbering_) return why_not;
    original_ = numbering_->original;
    units_ = numbering_->units;
    either_ = numbering_->either;
    return {};
  }

  // Ranks have unlike parts of a state: no unit is cut so.
  bool are_uneven() const {
    return std::ranges::any_of(ranks_.shares, [](const RankShare& share) {
      return std::ranges::any_of(share.lengths, [&](const auto& length) {
        return share.run && length.value_or(0) != share.lengths[0].value_or(0);
      });
    });
  }

  // The first rank with the same part.
  size_t twin_of(size_t rank) const {
    const auto& of_rank = ranks_.shards.of_rank;
    return static_cast<size_t>(std::ranges::find(of_rank, of_rank[rank]) -
                               of_rank.begin());
  }

  void check_replicas() const {
    for (const RankShare& share : ranks_.shares)
      for (size_t r = 0; r < share.lengths.size(); ++r) {
        const size_t twin = twin_of(r);
        const uint64_t mine = share.lengths[r].value_or(0);
        const uint64_t other = share.lengths[twin].value_or(0);
        if (mine == other) continue;
        throw input_error({paths_[mine < other ? r : twin], label(share)},
                          "rank {} has {} of its elements, rank {}, which has "
                          "the same part of the model, {}",
                          r, mine, twin, other)
            .with_hint(kHint);
      }
  }

  // A rank's runs of one parameter's states are of the same elements.
  void check_alike() const {
    std::map<uint64_t, const RankShare*> first;
    for (const RankShare& share : ranks_.shares) {
      if (!share.run || !tells_shape(tensor_of(share))) continue;
      const RankShare& other =
          *first.emplace(number_of(share), &share).first->second;
      for (size_t r = 0; r < share.lengths.size(); ++r) {
        const auto mine = share.lengths[r], its = other.lengths[r];
        if (!mine || !its || *mine == *its) continue;
        const bool less = *mine < *its;
        throw input_error(
            {paths_[r], label(less ? share : other)},
            "has {} elements, {} of the same rank {}", less ? *mine : *its,
            tensor_of(less ? other : share).state, less ? *its : *mine)
            .with_hint(kHint);
      }
    }
  }

  uint64_t sum_of(const RankShare& share) const {
    return share.run ? tensor_of(share).shape[0] : 0;
  }

  // True if each number has as many elements as some parameter that no other
  // number has.
  bool are_sizes_of_parameters() const {
    std::multiset<uint64_t> sizes;
    for (const Parameter& one : order_.parameters)
      sizes.insert(elements_of(one));
    std::map<uint64_t, uint64_t> sums;
    for (const RankShare& share : ranks_.shares) {
      if (!share.run || !tells_shape(tensor_of(share))) continue;
      const auto [known, fresh] = sums.emplace(number_of(share), sum_of(share));
      if (!fresh && known->second != sum_of(share)) return false;
    }
    for (const auto& [number, sum] : sums) {
      const auto found = sizes.find(sum);
      if (found == sizes.end()) return false;
      sizes.erase(found);
    }
    return true;
  }

  // The first rank whose file lacks the state.
  static std::optional<size_t> rank_without(const RankShare& share) {
    for (size_t r = 0; r < share.lengths.size(); ++r)
      if (!share.lengths[r]) return r;
    return std::nullopt;
  }

  // use_orig_params=False: each rank has a part of each unit, as long as the
  // others', and the last ones are padded.
  std::string check_units() const {
    for (const RankShare& share : ranks_.shares) {
      if (const auto rank = rank_without(share))
        throw input_error(
            {paths_[*rank], label(share)},
            "is not there: each rank has a part of each flat parameter")
            .with_hint(kHint);
      if (!share.run) continue;
      const FlatUnit& unit = (*units_)[place_of(share)];
      const uint64_t sum = sum_of(share);
      if (sum < unit.elements || sum - unit.elements >= ranks_.shards.count)
        return fmt::format(
            "flat parameter {} has {} elements, {} has {}", number_of(share),
            sum,
            unit.name.empty() ? "the model's own part" : printable(unit.name),
            unit.elements);
    }
    return {};
  }

  // use_orig_params=True: the parts of all ranks add up to the parameter.
  std::string check_parameters() {
    find_layout();
    std::optional<std::string> odd;
    for (const RankShare& share : ranks_.shares) {
      if (!share.run) continue;
      const Parameter& one = order_.parameters[place_of(share)];
      if (sum_of(share) == elements_of(one)) continue;
      if (!odd)
        odd = fmt::format("parameter {} has {} elements, {} has {}",
                          number_of(share), sum_of(share), printable(one.name),
                          elements_of(one));
    }
    if (odd) {
      if (!layout_ && are_sizes_of_parameters()) return *odd;
      for (const RankShare& share : ranks_.shares) refuse_short(share);
      return *odd;
    }
    check_states();
    if (!layout_)
      say_unproven();
    else
      say_none();
    return {};
  }

  // The way of wrapping by which each rank has what its file holds.
  void find_layout() {
    for (const auto& way : ways_) {
      Layout layout(order_.parameters.size());
      for (const FlatUnit& unit : way)
        for (uint64_t part = 0; part < ranks_.shards.count; ++part) {
          const auto ranges = aligned_part(unit, part, ranks_.shards.count);
          for (size_t p = 0; p < ranges.size(); ++p)
            layout[unit.numbers[p]].push_back(ranges[p].end - ranges[p].begin);
        }
      const auto fits = [&](const RankShare& share) {
        const auto& lengths = layout[place_of(share)];
        for (size_t r = 0; share.run && r < share.lengths.size(); ++r)
          if (share.lengths[r] &&
              *share.lengths[r] != lengths[ranks_.shards.of_rank[r]])
            return false;
        return true;
      };
      if (!std::ranges::all_of(ranks_.shares, fits)) continue;
      layout_ = std::move(layout);
      units_ = &way;
      return;
    }
  }

  void refuse_short(const RankShare& share) const {
    if (!share.run) return;
    const uint64_t place = place_of(share);
    const uint64_t wanted = elements_of(order_.parameters[place]);
    if (sum_of(share) >= wanted) return;
    std::vector<size_t> without;
    for (size_t r = 0; r < share.lengths.size(); ++r) {
      const uint64_t has = share.lengths[r].value_or(0);
      const uint64_t part =
          layout_ ? (*layout_)[place][ranks_.shards.of_rank[r]] : 0;
      if (layout_ && has < part)
        throw input_error({paths_[r], label(share)},
                          "is not there: rank {} has {} of the parameter's {} "
                          "elements",
                          r, part, wanted)
            .with_hint(kHint);
      if (has == 0) without.push_back(r);
    }
    if (without.empty()) return;
    throw input_error({paths_[without[0]], label(share)},
                      "the parts of all ranks have {} of the parameter's {} "
                      "elements; {} of {} have none",
                      sum_of(share), wanted, without.size(),
                      text::counted(share.lengths.size(), "rank"))
        .with_hint(kHint);
  }

  // A rank that has elements of a parameter has each state of it that others
  // have; and each parameter has the states that all others have.
  void check_states() const {
    std::map<std::string, std::map<uint64_t, const RankShare*>> by_state;
    std::map<uint64_t, const RankShare*> runs;  // one of each parameter
    for (const RankShare& share : ranks_.shares) {
      by_state[tensor_of(share).state].emplace(number_of(share), &share);
      if (share.run) runs.emplace(number_of(share), &share);
    }
    for (const auto& [state, shares] : by_state)
      for (const auto& [number, run] : runs) {
        const auto found = shares.find(number);
        const bool usual = runs.size() > 2 && shares.size() + 1 >= runs.size();
        if (found == shares.end() && !usual) continue;
        for (size_t r = 0; r < run->lengths.size(); ++r) {
          if (run->lengths[r].value_or(0) == 0) continue;
          if (found != shares.end() && found->second->lengths[r]) continue;
          throw input_error(
              {paths_[r], printable(order_.parameters[place_of(number)].name +
                                    "." + state)},
              "is not there: rank {} has elements of the parameter", r)
              .with_hint(kHint);
        }
      }
  }

  void say_unproven() {
    ranks_.catalog.problems.push_back(warning(
        "flat_layout", {paths_[0], {}},
        "the ranks' parts add up to the parameters, but units of layers are "
        "not cut so: that the files are of the ranks in their names is not "
        "proven"));
  }

  // What one rank alone holds is not told from what was never trained.
  void say_none() {
    std::set<uint64_t> have;
    for (const RankShare& share : ranks_.shares) have.insert(place_of(share));
    std::vector<uint64_t> none;
    for (uint64_t n = 0; n < order_.parameters.size(); ++n) {
      if (have.contains(n)) continue;
      const auto parts = std::ranges::count_if(
          (*layout_)[n], [](uint64_t part) { return part > 0; });
      if (parts > 1) return;  // some are frozen
      if (parts == 1) none.push_back(n);
    }
    if (none.empty() || ranks_.shards.of_rank.size() > ranks_.shards.count)
      return;
    ranks_.catalog.problems.push_back(warning(
        "no_state", {paths_[0], printable(order_.parameters[none[0]].name)},
        "{} no state in any file: frozen, or lost with the entry of the one "
        "rank that has the parameter",
        none.size() == 1
            ? "has"
            : fmt::format("and {} more parameters have", none.size() - 1)));
  }

  std::span<const Parameter> parameters_of(uint64_t number) const {
    const uint64_t place = place_of(number);
    if (original_) return std::span(order_.parameters).subspan(place, 1);
    return (*units_)[place].parameters;
  }

  // The tensors in the order of their numbers, not of the ranks that begin.
  std::vector<size_t> by_number() const {
    std::vector<size_t> order(ranks_.catalog.tensors.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t t) {
      return whole_number(ranks_.catalog.tensors[t].param).value_or(UINT64_MAX);
    });
    return order;
  }

  void cut() {
    std::set<size_t> shares;
    for (const RankShare& share : ranks_.shares) shares.insert(share.tensor);
    std::vector<Tensor> out;
    for (const size_t t : by_number()) {
      Tensor& tensor = ranks_.catalog.tensors[t];
      if (!shares.contains(t)) {
        tensor.name = "optimizer." + tensor.name;
        out.push_back(std::move(tensor));
        continue;
      }
      const auto parameters = parameters_of(*whole_number(tensor.param));
      if (!tensor.shape.empty()) {
        cut_run(tensor, parameters, out);
        continue;
      }
      // A step is the same for each parameter.
      for (const Parameter& parameter : parameters) {
        Tensor& one = out.emplace_back(tensor);
        one.param = parameter.name;
        one.name = one.param + "." + one.state;
      }
    }
    ranks_.catalog.tensors = std::move(out);
    ranks_.original = original_;
    if (numbering_) {
      ranks_.units = units_by_number(*numbering_);
      ranks_.groups = parameters_of_groups(*numbering_, order_);
    } else if (units_ != nullptr)
      ranks_.units = *units_;
    if (either_) ranks_.units.clear();
  }

  // Elements of each parameter (by number) in each part.
  using Layout = std::vector<std::vector<uint64_t>>;

  RankCatalog& ranks_;
  const std::vector<std::string>& paths_;
  const ParameterOrder order_;
  const std::vector<std::vector<FlatUnit>> ways_;
  const std::vector<FlatUnit>* units_ = nullptr;
  bool original_ = false;
  bool either_ = false;                 // units and parameters fit
  std::optional<Numbering> numbering_;  // else numbers are places
  std::optional<Layout> layout_;
};

}  // namespace

std::string name_shares(RankCatalog& ranks,
                        const std::vector<std::string>& paths,
                        std::span<const Tensor* const> model) {
  const ParameterOrder order = stored_order(model);
  FlatNames names(ranks, paths, model, order);
  std::string why_not = doubt_in_order(model);
  if (why_not.empty()) {
    why_not = names.name();
    if (why_not.empty()) return {};
    if (auto tied = without_tied_head(order))
      if (FlatNames(ranks, paths, model, *std::move(tied)).name().empty())
        return {};
  }
  names.check_unnamed();
  return why_not;
}

}  // namespace ckpt::runs
