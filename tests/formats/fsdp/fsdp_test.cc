// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/fsdp/flat_params.h"
#include "formats/fsdp/rank_files.h"

namespace ckpt::fsdp {
namespace {

using Names = std::vector<std::string>;

// Two parameters of 7 and 5 elements in one flat parameter.
std::vector<uint64_t> begins_of(uint64_t length, uint64_t ranks,
                                std::optional<uint64_t> alignment = {},
                                std::optional<uint64_t> padding = {}) {
  const FlatParameter flat{.key = "_flat_param",
                           .leaf = "_flat_param",
                           .parameters = {{"a", {7}}, {"b", {5}}},
                           .alignment = alignment,
                           .padding = padding};
  const FlatParameters all{
      .source = "flat.json", .from_user = true, .all = {flat}};
  return begins(
      all, flat,
      {.name = "_flat_param", .length = length, .itemsize = 4, .ranks = ranks});
}

}  // namespace

TEST_CASE("fsdp: files by rank: the last number that counts from zero") {
  const auto one =
      by_rank({"checkpoint_1_100-shard1.pt", "checkpoint_1_100-shard0.pt"});
  REQUIRE(one.size() == 2);
  CHECK(one[0] == Names{"checkpoint_1_100-shard0.pt"});
  const auto pairs = by_rank(
      {"model_rank0.pt", "model_rank1.pt", "optim_rank0.pt", "optim_rank1.pt"});
  REQUIRE(pairs.size() == 2);
  CHECK(pairs[1] == Names{"model_rank1.pt", "optim_rank1.pt"});
  // verl puts the world size before the rank.
  const auto verl =
      by_rank({"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"});
  CHECK(verl.size() == 2);
  // A rank is missing from one set or from all; none counts from 0.
  CHECK(by_rank({"a_rank0.pt", "a_rank2.pt"}).empty());
  CHECK(by_rank({"a_rank0.pt", "a_rank1.pt", "b_rank0.pt"}).empty());
  CHECK(by_rank({"a_rank1.pt", "a_rank2.pt"}).empty());
  CHECK(by_rank({"a_rank0.pt", "a_rank00.pt"}).empty());
  CHECK(by_rank({"a_rank99999999999999999999.pt"}).empty());
  CHECK(by_rank({"a.pt"}).empty());
  CHECK(by_rank({}).empty());
}

TEST_CASE("files that some ranks lack") {
  const Names whole = {"m_rank0.pt", "m_rank1.pt", "m_rank2.pt"};
  const auto lost = [&](Names more) {
    more.insert(more.end(), whole.begin(), whole.end());
    return lost_of_ranks(more);
  };
  CHECK(lost({"o_rank0.pt", "o_rank2.pt"}) == Names{"o_rank1.pt"});
  CHECK(lost({"o_rank1.pt"}) == Names{"o_rank0.pt", "o_rank2.pt"});
  CHECK(lost({"o_rank0.pt", "o_rank1.pt", "p_rank1.pt", "p_rank2.pt"}) ==
        Names{"o_rank2.pt", "p_rank0.pt"});
  CHECK(lost({}).empty());
  CHECK(lost({"o_rank0.pt"}).empty());  // it may be for all
  CHECK(lost({"o_rank0.pt", "o_rank1.pt", "o_rank2.pt"}).empty());
  CHECK(lost({"o_rank1.pt", "o_rank3.pt"}).empty());  // of other ranks
  CHECK(lost({"notes.pt"}).empty());
  CHECK(lost_of_ranks({"a_rank0.pt", "a_rank2.pt"}).empty());
}

TEST_CASE("fsdp: where parameters begin in a flat one") {
  using Begins = std::vector<uint64_t>;
  // Nothing between them: use_orig_params=False, fairscale.
  CHECK(begins_of(12, 2) == Begins{0, 7});
  // use_orig_params=True: each starts at a multiple of 16 bytes, and the end is
  // padded to a multiple of the ranks.
  CHECK(begins_of(13, 1) == Begins{0, 8});
  CHECK(begins_of(14, 2) == Begins{0, 8});
  CHECK(begins_of(14, 2, 4, 1) == Begins{0, 8});
  // Numbers that don't add up.
  CHECK_THROWS_AS(begins_of(11, 1), Error);
  CHECK_THROWS_AS(begins_of(40, 2), Error);
}

TEST_CASE("fsdp: the names of flat parameters") {
  for (const char* leaf : {"_flat_param", "flat_param", "flat_param_0"})
    CHECK(is_flat_leaf(leaf));
  for (const char* leaf : {"", "param", "flat_param_", "flat_param_x",
                           "my_flat_param", "flat_params"})
    CHECK_FALSE(is_flat_leaf(leaf));
}

}  // namespace ckpt::fsdp
