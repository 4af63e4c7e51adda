// SPDX-License-Identifier: Apache-2.0
#include "api/edit/layers.h"

#include <doctest/doctest.h>

#include "api/edit/select.h"
#include "ckpt/error.h"
#include "tests/support/catalogs.h"

namespace ckpt::library {
namespace {

using test::tensor;

// One f32 piece of rows [first, first + rows), starting at `at`.
Piece rows(const Shape& shape, uint64_t first, uint64_t count, uint64_t at) {
  Piece piece;
  piece.box = Box::whole(shape);
  piece.box.offset[0] = first;
  piece.box.shape[0] = count;
  piece.extent.offset = at;
  return piece;
}

// Four layers of 2 x 3: one box per layer, one box for all, and flat ranges.
Catalog stacked() {
  const Shape shape{4, 2, 3};
  Catalog made = test::catalog({tensor("decoder.layers.a.weight", shape),
                                tensor("decoder.layers.b.weight", shape),
                                tensor("decoder.layers.c.weight", shape),
                                tensor("embedding.weight", {8})});
  made.format = "megatron_torch_dist";
  for (Tensor& t : made.tensors) t.dtype = DType::f32;
  made.tensors[0].pieces.clear();
  for (uint64_t layer = 0; layer < 4; ++layer)
    made.tensors[0].pieces.push_back(rows(shape, layer, 1, 1000 * layer));
  made.tensors[2].pieces.clear();
  for (const uint64_t begin : {0, 10}) {
    Piece piece = rows(shape, 0, 4, 4 * begin);
    piece.flat = FlatRange{begin, begin == 0 ? 10u : 24u};
    made.tensors[2].pieces.push_back(piece);
  }
  for (const char* name :
       {"decoder.layers.a._extra_state/shard_0_4",
        "decoder.layers.a._extra_state/shard_2_4",
        "decoder.layers.a._extra_state/shard_3_4", "rng_state/shard_0.1_2.2"})
    made.objects.push_back({.name = name, .document = nullptr});
  return made;
}

std::vector<std::string> object_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const Object& object : catalog.objects) names.push_back(object.name);
  return names;
}

}  // namespace

TEST_CASE("layers: rows of stacked layers, wherever they are stored") {
  Catalog made = stacked();
  const Chosen selection = choose(made, {.layers = "1-2"});
  CHECK(selection.dropped == 0);
  CHECK(selection.warning.find("stacks 4 layers; kept are layers 1-2 as rows "
                               "0-1") != std::string::npos);
  for (size_t t = 0; t < 3; ++t) CHECK(made.tensors[t].shape == Shape{2, 2, 3});
  CHECK(made.tensors[3].shape == Shape{8});

  const auto& boxes = made.tensors[0].pieces;
  REQUIRE(boxes.size() == 2);
  CHECK(boxes[0].box == Box{{0, 0, 0}, {1, 2, 3}});
  CHECK(boxes[0].extent.offset == 1000);
  CHECK(boxes[1].box == Box{{1, 0, 0}, {1, 2, 3}});
  CHECK(boxes[1].extent.offset == 2000);

  REQUIRE(made.tensors[1].pieces.size() == 1);
  CHECK(made.tensors[1].pieces[0].box == Box{{0, 0, 0}, {2, 2, 3}});
  CHECK(made.tensors[1].pieces[0].extent.offset == 6 * 4);

  // Layers 1 and 2 are elements 6 to 18; the pieces meet at 10.
  const auto& flat = made.tensors[2].pieces;
  REQUIRE(flat.size() == 2);
  CHECK(flat[0].flat == FlatRange{0, 4});
  CHECK(flat[0].extent.offset == 6 * 4);
  CHECK(flat[1].flat == FlatRange{4, 12});
  CHECK(flat[1].extent.offset == 10 * 4);
}

TEST_CASE("layers: objects of a grid of layers follow") {
  Catalog made = stacked();
  select(made, {.layers = "0,3"});
  CHECK(made.tensors[0].shape == Shape{2, 2, 3});
  CHECK(object_names(made) ==
        std::vector<std::string>{"decoder.layers.a._extra_state/shard_0_2",
                                 "decoder.layers.a._extra_state/shard_1_2",
                                 "rng_state/shard_0.1_2.2"});
}

TEST_CASE("layers: a layer that is not there") {
  Catalog made = stacked();
  CHECK_THROWS_WITH_AS(select(made, {.layers = "2-4"}),
                       doctest::Contains("there is no layer 4; the source has "
                                         "4 layers, 0 to 3"),
                       Error);
}

TEST_CASE("layers: all of them change nothing") {
  Catalog made = stacked();
  const Chosen selection = choose(made, {.layers = "0-3"});
  CHECK(selection.warning.empty());
  CHECK(made.tensors[0].pieces.size() == 4);
  CHECK(made.objects.size() == 4);
}

TEST_CASE("select: --exclude leaves out objects too") {
  Catalog made = stacked();
  const Chosen selection =
      choose(made, {.exclude = {"rng_state/*", "*._extra_state/*"}});
  CHECK(selection.dropped == 0);
  CHECK(made.objects.empty());
  CHECK(made.tensors.size() == 4);
  CHECK(selection.notes ==
        std::vector<std::string>{"--exclude rng_state/* *._extra_state/*: 4 of "
                                 "4 objects left out"});
  Catalog again = stacked();
  CHECK_THROWS_WITH_AS(select(again, {.exclude = {"rgn_state/*"}}),
                       doctest::Contains("--exclude 'rgn_state/*' matches none "
                                         "of the 4 tensors and 4 objects"),
                       Error);
  // --keys is about tensors.
  CHECK_THROWS_AS(select(again, {.keys = {"rng_state/*"}}), Error);
}

}  // namespace ckpt::library
