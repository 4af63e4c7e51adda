// SPDX-License-Identifier: Apache-2.0
// Which stored blocks a tensor was cut into, judged by its digest.
//
// The digest is linear (lib/digest.h): the digests of the blocks, each at its
// place, add up to that of the tensor. So a choice of blocks is proven, not
// guessed; another choice with the same sum has the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "formats/salvage/item_scan.h"
#include "lib/manifest.h"

namespace ckpt::salvage {

struct Block {
  std::string file;   // path
  uint32_t rank = 0;  // whose file it is
  ScannedTensor tensor;
  bool used = false;
};

struct Placed {
  size_t block = 0;
  Box box;
};

class Matcher {
 public:
  // In the order of ranks, and of each file. `blocks` outlives it.
  explicit Matcher(std::vector<Block>& blocks);

  // The blocks that make up the tensor, marked as used; nothing if no choice of
  // unused ones that is tried has its digest. Tried are regular grids: every
  // block has one shape, but those at the far edges may be smaller.
  std::optional<std::vector<Placed>> match(const Manifest::Entry& entry);

 private:
  using Cells = std::vector<Box>;
  std::vector<Cells> grids(const Manifest::Entry& entry) const;
  std::optional<std::vector<Placed>> fill(const Manifest::Entry& entry,
                                          const Cells& cells);
  using Choice = std::vector<size_t>;  // a block for each cell
  std::optional<Choice> in_order(const Manifest::Entry& entry,
                                 const Cells& cells);
  std::optional<Choice> in_ranks(const Manifest::Entry& entry,
                                 const Cells& cells);
  using Blocks = std::vector<std::vector<size_t>>;  // candidates of each cell
  std::vector<Digest> sums(const Manifest::Entry& entry, const Cells& cells,
                           const Blocks& blocks, size_t begin, size_t end);
  std::optional<Choice> any_order(const Manifest::Entry& entry,
                                  const Cells& cells);
  std::vector<size_t> candidates(DType dtype, const Shape& shape) const;
  Digest digest_of(size_t block, const Shape& shape, const Box& box);
  bool take(uint64_t choices);  // false if no more may be tried

  std::vector<Block>& blocks_;
  std::map<std::pair<DType, Shape>, std::vector<size_t>> by_shape_;
  // Of a block in a tensor of that shape, at that offset.
  std::map<std::tuple<size_t, Shape, Dims>, Digest> known_;
  uint64_t choices_left_ = uint64_t{1} << 26;  // a minute or so
};

}  // namespace ckpt::salvage
