// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/cover.h"

#include <algorithm>
#include <tuple>

#include "ckpt/error.h"
#include "formats/olmo_core/v1/rows.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core::v1 {
namespace {

using text::printable;

class Coverer {
 public:
  Coverer(const std::string& index, const Tensor& tensor, CoverBudget& budget)
      : index_(index),
        tensor_(tensor),
        budget_(budget),
        count_(element_count(tensor.shape).value_or(0)) {}

  std::vector<Piece> cover(std::vector<Piece> pieces) {
    const bool any_flat = std::ranges::any_of(pieces, is_flat);
    const bool all_flat = std::ranges::all_of(pieces, is_flat);
    if (!all_flat && !any_flat && boxes_fit(pieces)) return pieces;
    if (!all_flat) pieces = as_rows(std::move(pieces));
    if (check_ranges(pieces)) pieces = split(pieces);
    return pieces;
  }

 private:
  static bool is_flat(const Piece& piece) { return piece.flat.has_value(); }

  // True if boxes are equal or disjoint, as far as their volumes tell; the
  // planner proves the rest.
  bool boxes_fit(const std::vector<Piece>& pieces) const {
    std::vector<const Box*> boxes;
    for (const Piece& piece : pieces) boxes.push_back(&piece.box);
    const auto key = [](const Box* box) {
      return std::tie(box->offset, box->shape);
    };
    std::ranges::sort(boxes, {}, key);
    const auto same = [](const Box* a, const Box* b) { return *a == *b; };
    boxes.erase(std::unique(boxes.begin(), boxes.end(), same), boxes.end());
    uint64_t sum = 0;
    for (const Box* box : boxes) {
      const uint64_t size = volume(*box);
      if (size > count_ - sum) return false;  // they overlap
      sum += size;
    }
    if (sum < count_)
      throw input_error({index_, printable(tensor_.name)},
                        "its boxes hold {} of {} elements: the others are "
                        "nowhere",
                        sum, count_)
          .with_hint("a rank's part was not saved; use another checkpoint");
    return true;
  }

  void spend(uint64_t pieces) {
    if (pieces > budget_.pieces)
      throw resource_error({index_, printable(tensor_.name)},
                           "its copies overlap so that they fall into more "
                           "than {} parts",
                           budget_.pieces);
    budget_.pieces -= pieces;
  }

  // Turns boxes into the flat ranges that they are in the whole tensor.
  std::vector<Piece> as_rows(std::vector<Piece> pieces) {
    const uint64_t size = element_size(tensor_.dtype);
    std::vector<Piece> flat;
    for (Piece& piece : pieces) {
      if (piece.flat) {
        flat.push_back(std::move(piece));
        continue;
      }
      spend(row_count(piece.box, tensor_.shape));
      uint64_t at = piece.extent.offset;
      each_row(piece.box, tensor_.shape, [&](const FlatRange& range) {
        flat.push_back(
            {.box = Box::whole(tensor_.shape),
             .flat = range,
             .extent = {
                 .offset = at, .strides = {}, .file = piece.extent.file}});
        at += (range.end - range.begin) * size;
      });
    }
    return flat;
  }

  // True if some overlap without being equal.
  bool check_ranges(std::vector<Piece>& pieces) const {
    std::vector<FlatRange> ranges;
    for (const Piece& piece : pieces) ranges.push_back(*piece.flat);
    std::ranges::sort(ranges, {}, [](const FlatRange& range) {
      return std::pair(range.begin, range.end);
    });
    bool overlap = false;
    uint64_t reach = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].begin > reach) fail_hole(reach, ranges[i].begin);
      const bool replica = i > 0 && ranges[i] == ranges[i - 1];
      overlap = overlap || (ranges[i].begin < reach && !replica);
      reach = std::max(reach, ranges[i].end);
    }
    if (reach < count_) fail_hole(reach, count_);
    return overlap;
  }

  [[noreturn]] void fail_hole(uint64_t begin, uint64_t end) const {
    throw input_error({index_, printable(tensor_.name)},
                      "elements [{}, {}) of its {} are in no file", begin, end,
                      count_)
        .with_hint("a rank's part was not saved; use another checkpoint");
  }

  std::vector<Piece> split(const std::vector<Piece>& pieces) {
    std::vector<uint64_t> cuts;
    for (const Piece& piece : pieces) {
      cuts.push_back(piece.flat->begin);
      cuts.push_back(piece.flat->end);
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    const uint64_t size = element_size(tensor_.dtype);
    std::vector<Piece> parts;
    for (const Piece& piece : pieces) {
      auto at = std::ranges::upper_bound(cuts, piece.flat->begin);
      for (uint64_t begin = piece.flat->begin; begin < piece.flat->end; ++at) {
        spend(1);
        Piece& part = parts.emplace_back(piece);
        part.flat = FlatRange{begin, *at};
        part.extent.offset += (begin - piece.flat->begin) * size;
        begin = *at;
      }
    }
    return parts;
  }

  const std::string& index_;
  const Tensor& tensor_;
  CoverBudget& budget_;
  const uint64_t count_;
};

}  // namespace

std::vector<Piece> cover(const std::string& index, const Tensor& tensor,
                         std::vector<Piece> pieces, CoverBudget& budget) {
  if (element_count(tensor.shape).value_or(0) == 0) return {};
  return Coverer(index, tensor, budget).cover(std::move(pieces));
}

}  // namespace ckpt::olmo_core::v1
