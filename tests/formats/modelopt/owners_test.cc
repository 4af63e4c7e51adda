// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/owners.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/options.h"

namespace ckpt::modelopt {

TEST_CASE("modelopt: every block has one owner, in even runs") {
  for (uint64_t count = 0; count <= 12; ++count)
    for (uint64_t ranks = 1; ranks <= 14; ++ranks) {
      CAPTURE(count);
      CAPTURE(ranks);
      const Owners owners = Owners::even(count, ranks);
      CHECK(owners.ranks() == ranks);
      std::vector<uint64_t> of_rank(ranks);
      uint32_t last = 0;
      for (uint64_t block = 0; block < count; ++block) {
        const auto owner = owners.of_block(block);
        REQUIRE(owner);
        REQUIRE(*owner < ranks);
        CHECK(*owner >= last);
        last = *owner;
        ++of_rank[*owner];
      }
      // The first (count mod ranks) ranks have one more.
      for (uint64_t r = 0; r < ranks; ++r)
        CHECK(of_rank[r] == count / ranks + (r < count % ranks));
      CHECK_FALSE(owners.of_block(count));
    }
}

TEST_CASE("modelopt: lists of blocks") {
  CHECK(parse_blocks("0-3,8") == std::set<uint32_t>{0, 1, 2, 3, 8});
  CHECK(parse_ranks("0-1//4").size() == 3);
  CHECK(parse_ranks("0-1//4")[1].empty());
  for (const char* list : {"", "/", "-", "3-", "-3", "3-1", "1,,2", "1,", "x",
                           "+1", " 1", "1 ", "0x1", "99999999999", "1-2-3"}) {
    CAPTURE(list);
    CHECK_THROWS_AS(parse_ranks(list), Error);
  }
  const Owners owners = Owners::given("0-1,5/2", 6);
  CHECK(owners.of_block(5) == 0u);
  CHECK(owners.of_block(2) == 1u);
  CHECK_FALSE(owners.of_block(3));
  CHECK_THROWS_WITH_AS(Owners::given("0-6", 6),
                       doctest::Contains("there is no block 6"), Error);
  CHECK_THROWS_WITH_AS(Owners::given("0-1/1", 6),
                       doctest::Contains("given to ranks 0 and 1"), Error);
}

TEST_CASE("modelopt: the place of a name in a model") {
  const Naming* naming = find_naming("llama");
  REQUIRE(naming);
  const Place place = naming->place("model.layers.12.self_attn.q_proj.weight");
  CHECK(place.part == Part::kBlock);
  CHECK(place.block == 12);
  CHECK(place.rest == "self_attn.q_proj.weight");
  CHECK(naming->half(place.rest) == Half::kAttention);
  CHECK(naming->half("mlp.up_proj.weight") == Half::kFfn);
  CHECK(naming->place("model.embed_tokens.weight").part == Part::kEmbedding);
  CHECK(naming->place("model.norm.weight").part == Part::kNorm);
  CHECK(naming->place("lm_head.weight").part == Part::kHead);
  for (const char* name :
       {"", "model.layers.", "model.layers.3", "model.layers.-3.w",
        "model.layers.+3.w", "model.layers.x.w", "model.layers.99999999999.w",
        "vision.layers.3.w"}) {
    CAPTURE(name);
    CHECK(naming->place(name).part == Part::kOther);
  }
  CHECK_FALSE(find_naming("no_such_type"));
}

TEST_CASE("modelopt: its options and the ranks that are asked for") {
  struct Row {
    std::string blocks;
    bool files;
    std::optional<uint32_t> asked;
    uint32_t pp;  // of the target; 0: refused
    const char* form;
  };
  const Row rows[] = {
      {"", false, {}, 7, ""},
      {"", false, 4, 4, "shards"},
      {"0-3/4", false, {}, 2, "shards"},
      {"0-3/4", false, 2, 2, "shards"},
      {"0-3/4", false, 3, 0, ""},
      {"", true, {}, 1, "blocks"},
      {"", true, 1, 1, "blocks"},
      {"", true, 2, 0, ""},
      {"0-3", true, {}, 1, "blocks"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.blocks);
    CAPTURE(row.files);
    Layout layout{.format = "modelopt"};
    layout.topology.pp = row.asked.value_or(7);
    if (!row.blocks.empty()) layout.options["blocks"] = row.blocks;
    if (row.files) layout.options["block-files"] = "yes";
    const formats::Asked asked{.pp = row.asked};
    if (row.pp == 0) {
      CHECK_THROWS_AS(settle_options({}, asked, layout), Error);
      continue;
    }
    settle_options({}, asked, layout);
    CHECK(layout.topology.pp == row.pp);
    CHECK(form_of(layout) == row.form);
  }
}

}  // namespace ckpt::modelopt
