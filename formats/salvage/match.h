// SPDX-License-Identifier: Apache-2.0
// Finds which stored blocks a tensor was cut into, judging by its digest.
//
// The digest is linear (lib/hash/digest.h): the digests of the blocks, each at
// its place, add up to the tensor's. So a choice of blocks is proven, not
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
  // `blocks` are in the order of ranks, then of each file, and must outlive the
  // matcher.
  explicit Matcher(std::vector<Block>& blocks);

  // Finds the blocks that make up the tensor and marks them as used; nothing if
  // no choice of unused ones that it tries has the digest. Tries regular grids:
  // all blocks have one shape, except that those at the far edges may be
  // smaller.
  std::optional<std::vector<Placed>> match(const Manifest::Entry& entry);

 private:
  using Cells = std::vector<Box>;
  std::vector<Cells> grids(const Manifest::Entry& entry) const;
  std::optional<std::vector<Placed>> fill(const Manifest::Entry& entry,
                                          const Cells& cells);
  using Choice = std::vector<size_t>;  // a block per cell
  std::optional<Choice> in_order(const Manifest::Entry& entry,
                                 const Cells& cells);
  std::optional<Choice> in_ranks(const Manifest::Entry& entry,
                                 const Cells& cells);
  using Blocks = std::vector<std::vector<size_t>>;  // each cell's candidates
  std::vector<Digest> sums(const Manifest::Entry& entry, const Cells& cells,
                           const Blocks& blocks, size_t begin, size_t end);
  std::optional<Choice> any_order(const Manifest::Entry& entry,
                                  const Cells& cells);
  std::vector<size_t> candidates(DType dtype, const Shape& shape) const;
  Digest digest_of(size_t block, const Shape& shape, const Box& box);
  bool take(uint64_t choices);  // false if the limit is reached

  std::vector<Block>& blocks_;
  std::map<std::pair<DType, Shape>, std::vector<size_t>> by_shape_;
  // The digest of a block in a tensor of that shape, at that offset.
  std::map<std::tuple<size_t, Shape, Dims>, Digest> known_;
  uint64_t choices_left_ = uint64_t{1} << 26;  // about a minute's worth
};

}  // namespace ckpt::salvage
