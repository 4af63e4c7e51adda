// SPDX-License-Identifier: Apache-2.0
#include "formats/salvage/match.h"

#include <algorithm>
#include <set>

namespace ckpt::salvage {
namespace {

constexpr size_t kMostCells = 4096;
// Choices for one half of the cells; both halves meet in the middle.
constexpr uint64_t kMostChoices = uint64_t{1} << 19;
constexpr uint64_t kBlockBytes = uint64_t{4} << 20;

Digest operator-(const Digest& a, const Digest& b) {
  return {a.d0 - b.d0, a.d1 - b.d1};
}

// A digit of a block's place in its rank's order: it counts `count` steps of
// `step` cells along `axis`.
struct Digit {
  size_t axis = 0;
  uint64_t count = 0;
  uint64_t step = 0;
};
using Order = std::vector<Digit>;  // the first one changes slowest

// How a grid may be spread over ranks: each axis whole or cut in two, as stages
// cut layers, or tensor-parallel ranks cut the halves of a fused gate and up;
// and these digits in any order.
std::vector<Order> orders(const std::vector<uint64_t>& parts) {
  std::vector<Order> cut{{}};
  for (size_t axis = 0; axis < parts.size(); ++axis) {
    if (parts[axis] == 1) continue;
    std::vector<Order> longer;
    for (const Order& order : cut)
      for (uint64_t inner = 1; inner < parts[axis]; ++inner) {
        if (parts[axis] % inner != 0) continue;
        longer.push_back(order);
        longer.back().push_back({axis, parts[axis] / inner, inner});
        if (inner > 1) longer.back().push_back({axis, inner, 1});
      }
    cut = std::move(longer);
  }
  constexpr size_t kMostDigits = 5;
  std::vector<Order> all;
  for (const Order& order : cut) {
    if (order.size() > kMostDigits) continue;
    std::vector<size_t> turn(order.size());
    for (size_t i = 0; i < turn.size(); ++i) turn[i] = i;
    do {
      all.emplace_back();
      for (const size_t i : turn) all.back().push_back(order[i]);
    } while (std::ranges::next_permutation(turn).found);
  }
  return all;
}

// The cell of the n-th block in that order.
size_t cell_at(const Order& order, const std::vector<uint64_t>& parts,
               size_t n) {
  std::vector<uint64_t> index(parts.size(), 0);
  for (size_t i = order.size(); i > 0; --i) {
    const Digit& digit = order[i - 1];
    index[digit.axis] += n % digit.count * digit.step;
    n /= digit.count;
  }
  size_t cell = 0;
  for (size_t axis = 0; axis < parts.size(); ++axis)
    cell = cell * parts[axis] + index[axis];
  return cell;
}

// The digest of a row-major block of `shape` (elements of `size` bytes) that
// begins at byte `at` of the file.
Digest digest_at(const io::Handle& file, uint64_t at, const Shape& shape,
                 const Box& box, uint64_t size) {
  Digest sum;
  const uint64_t elements = volume(box);
  const uint64_t step = std::max<uint64_t>(1, kBlockBytes / size);
  std::string bytes;
  const Dims strides = row_major_strides(shape);
  for (uint64_t begin = 0; begin < elements; begin += step) {
    const uint64_t end = std::min(elements, begin + step);
    bytes = file.read_string(at + begin * size, (end - begin) * size);
    for (const FlatPart& part : cut(box, {begin, end})) {
      // Rows of the part: its last dimension, and preceding ones that are
      // whole.
      uint64_t row = 1;
      size_t d = part.box.shape.size();
      while (d > 0) {
        row *= part.box.shape[--d];
        if (part.box.shape[d] != shape[d]) break;
      }
      const uint64_t rows = volume(part.box) / row;
      const std::byte* data =
          reinterpret_cast<const std::byte*>(bytes.data()) + part.at * size;
      for (uint64_t r = 0; r < rows; ++r) {
        uint64_t first = 0, rest = r;
        for (size_t k = part.box.shape.size(); k > 0; --k) {
          const size_t axis = k - 1;
          const uint64_t index =
              axis < d ? rest % part.box.shape[axis] : uint64_t{0};
          if (axis < d) rest /= part.box.shape[axis];
          first += (part.box.offset[axis] + index) * strides[axis];
        }
        sum += digest(first * size, {data + r * row * size, row * size});
      }
    }
  }
  return sum;
}

}  // namespace

Matcher::Matcher(std::vector<Block>& blocks) : blocks_(blocks) {
  for (size_t i = 0; i < blocks_.size(); ++i)
    by_shape_[{blocks_[i].tensor.dtype, blocks_[i].tensor.shape}].push_back(i);
}

std::vector<size_t> Matcher::candidates(DType dtype, const Shape& shape) const {
  std::vector<size_t> unused;
  const auto found = by_shape_.find({dtype, shape});
  if (found != by_shape_.end())
    for (const size_t block : found->second)
      if (!blocks_[block].used) unused.push_back(block);
  return unused;
}

Digest Matcher::digest_of(size_t index, const Shape& shape, const Box& box) {
  const auto [known, is_new] =
      known_.try_emplace({index, shape, box.offset}, Digest{});
  if (!is_new) return known->second;
  const Block& block = blocks_[index];
  known->second =
      digest_at(io::Handle::open_read(block.file), block.tensor.data, shape,
                box, element_size(block.tensor.dtype));
  return known->second;
}

// Every grid whose cells all have blocks of their shape, fewest cells first.
std::vector<Matcher::Cells> Matcher::grids(const Manifest::Entry& entry) const {
  std::vector<Cells> grids;
  for (const auto& [key, blocks] : by_shape_) {
    const auto& [dtype, shape] = key;
    if (dtype != entry.dtype || shape.size() != entry.shape.size()) continue;
    uint64_t count = 1;
    Dims parts(shape.size(), 1);
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == entry.shape[d]) continue;
      if (shape[d] == 0 || shape[d] > entry.shape[d]) count = 0;
      if (count == 0) break;
      parts[d] = (entry.shape[d] - 1) / shape[d] + 1;
      count = checked_mul(count, parts[d]).value_or(0);
      if (count > std::min(kMostCells, blocks_.size())) count = 0;
    }
    if (count == 0) continue;
    Cells cells;
    for (uint64_t c = 0; c < count; ++c) {
      Box box{Dims(shape.size(), 0), shape};
      uint64_t rest = c;
      for (size_t d = shape.size(); d > 0; --d) {
        box.offset[d - 1] = rest % parts[d - 1] * shape[d - 1];
        box.shape[d - 1] =
            std::min(shape[d - 1], entry.shape[d - 1] - box.offset[d - 1]);
        rest /= parts[d - 1];
      }
      cells.push_back(std::move(box));
    }
    grids.push_back(std::move(cells));
  }
  std::ranges::stable_sort(grids, {}, &Cells::size);
  return grids;
}

// Takes the n-th fitting block of each rank's files in turn, as written by
// savers that cut every tensor over all ranks in one order.
std::optional<Matcher::Choice> Matcher::in_order(const Manifest::Entry& entry,
                                                 const Cells& cells) {
  std::vector<std::vector<std::vector<size_t>>> of_cell;  // by rank
  size_t most = 0;
  for (const Box& cell : cells) {
    std::map<uint32_t, std::vector<size_t>> by_rank;
    for (const size_t block : candidates(entry.dtype, cell.shape))
      by_rank[blocks_[block].rank].push_back(block);
    of_cell.emplace_back();
    for (auto& [rank, blocks] : by_rank) {
      most = std::max(most, blocks.size());
      of_cell.back().push_back(std::move(blocks));
    }
    if (of_cell.back().empty()) return std::nullopt;
  }
  // The ranks that hold the last cell may differ from those of the first.
  const size_t ranks = of_cell[0].size();
  if (ranks + 1 < cells.size()) return std::nullopt;
  for (size_t n = 0; n < most; ++n) {
    Choice choice;
    Digest sum;
    for (size_t c = 0; c < cells.size(); ++c) {
      const size_t rank = std::min(c, of_cell[c].size() - 1);
      if (n >= of_cell[c][rank].size()) break;
      choice.push_back(of_cell[c][rank][n]);
      sum += digest_of(choice.back(), entry.shape, cells[c]);
    }
    if (choice.size() == cells.size() && sum == entry.digest) return choice;
  }
  return std::nullopt;
}

bool Matcher::take(uint64_t choices) {
  if (choices > choices_left_) return false;
  choices_left_ -= choices;
  return true;
}

// For a grid of equal cells: each rank has as many blocks of this tensor as of
// every other one of that shape, one tensor after another.
std::optional<Matcher::Choice> Matcher::in_ranks(const Manifest::Entry& entry,
                                                 const Cells& cells) {
  const Shape& shape = cells[0].shape;
  if (cells.back().shape != shape) return std::nullopt;
  const std::vector<size_t> blocks = candidates(entry.dtype, shape);
  if (blocks.size() % cells.size() != 0) return std::nullopt;
  const size_t tensors = blocks.size() / cells.size();
  std::map<uint32_t, std::vector<size_t>> by_rank;
  for (const size_t block : blocks)
    by_rank[blocks_[block].rank].push_back(block);
  std::vector<uint64_t> parts;
  for (size_t d = 0; d < shape.size(); ++d)
    parts.push_back(entry.shape[d] / std::max<uint64_t>(shape[d], 1));
  const std::vector<Order> all = orders(parts);
  for (size_t n = 0; n < tensors; ++n) {
    Choice sequence;
    for (const auto& [rank, of_rank] : by_rank) {
      const size_t share = of_rank.size() / tensors;
      if (of_rank.size() % tensors != 0) return std::nullopt;
      const auto begin =
          of_rank.begin() + static_cast<std::ptrdiff_t>(n * share);
      sequence.insert(sequence.end(), begin,
                      begin + static_cast<std::ptrdiff_t>(share));
    }
    for (const Order& order : all) {
      if (!take(cells.size())) return std::nullopt;
      Choice choice(cells.size());
      Digest sum;
      for (size_t i = 0; i < sequence.size(); ++i) {
        const size_t cell = cell_at(order, parts, i);
        choice[cell] = sequence[i];
        sum += digest_of(sequence[i], entry.shape, cells[cell]);
      }
      if (sum == entry.digest) return choice;
    }
  }
  return std::nullopt;
}

// The digest sum of every choice for cells [begin, end). Choice n has block n %
// count of the last cell, and so on, like the digits of a number.
std::vector<Digest> Matcher::sums(const Manifest::Entry& entry,
                                  const Cells& cells, const Blocks& blocks,
                                  size_t begin, size_t end) {
  std::vector<Digest> sums{{}};
  for (size_t c = begin; c < end; ++c) {
    std::vector<Digest> longer;
    longer.reserve(sums.size() * blocks[c].size());
    for (const Digest& sum : sums)
      for (const size_t block : blocks[c]) {
        longer.push_back(digest_of(block, entry.shape, cells[c]));
        longer.back() += sum;
      }
    sums = std::move(longer);
  }
  return sums;
}

// Tries every choice, if that is at most kMostChoices for half of the cells:
// looks up what the second half must add among the sums of the first.
std::optional<Matcher::Choice> Matcher::any_order(const Manifest::Entry& entry,
                                                  const Cells& cells) {
  Blocks blocks;
  for (const Box& cell : cells) {
    blocks.push_back(candidates(entry.dtype, cell.shape));
    if (blocks.back().empty()) return std::nullopt;
  }
  const size_t half = cells.size() / 2;
  const auto choices = [&](size_t begin, size_t end) {
    uint64_t count = 1;
    for (size_t c = begin; c < end; ++c)
      count = checked_mul(count, blocks[c].size()).value_or(UINT64_MAX);
    return count;
  };
  const uint64_t of_first = choices(0, half);
  const uint64_t of_second = choices(half, cells.size());
  if (of_first > kMostChoices || of_second > kMostChoices ||
      !take(of_first + of_second))
    return std::nullopt;
  const std::vector<Digest> first = sums(entry, cells, blocks, 0, half);
  const std::vector<Digest> second =
      sums(entry, cells, blocks, half, cells.size());
  std::vector<uint32_t> sorted(first.size());
  for (uint32_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  const auto d0 = [&](uint32_t i) { return first[i].d0; };
  std::ranges::sort(sorted, {}, d0);
  for (size_t n = 0; n < second.size(); ++n) {
    const Digest rest = entry.digest - second[n];
    for (auto at = std::ranges::lower_bound(sorted, rest.d0, {}, d0);
         at != sorted.end() && d0(*at) == rest.d0; ++at) {
      const uint32_t other = *at;
      if (first[other] != rest) continue;
      Choice choice(cells.size());
      uint64_t digits = other;
      for (size_t c = half; c > 0; --c) {
        choice[c - 1] = blocks[c - 1][digits % blocks[c - 1].size()];
        digits /= blocks[c - 1].size();
      }
      digits = n;
      for (size_t c = cells.size(); c > half; --c) {
        choice[c - 1] = blocks[c - 1][digits % blocks[c - 1].size()];
        digits /= blocks[c - 1].size();
      }
      if (std::set<size_t>(choice.begin(), choice.end()).size() ==
          choice.size())
        return choice;
    }
  }
  return std::nullopt;
}

std::optional<std::vector<Placed>> Matcher::fill(const Manifest::Entry& entry,
                                                 const Cells& cells) {
  auto choice = in_order(entry, cells);
  if (!choice) choice = in_ranks(entry, cells);
  if (!choice) choice = any_order(entry, cells);
  if (!choice) return std::nullopt;
  std::vector<Placed> placed;
  for (size_t c = 0; c < cells.size(); ++c) {
    placed.push_back({(*choice)[c], cells[c]});
    blocks_[placed.back().block].used = true;
  }
  return placed;
}

std::optional<std::vector<Placed>> Matcher::match(
    const Manifest::Entry& entry) {
  for (const Cells& cells : grids(entry))
    if (auto placed = fill(entry, cells)) return placed;
  return std::nullopt;
}

}  // namespace ckpt::salvage
