// SPDX-License-Identifier: Apache-2.0
#include "app/print/pattern.h"

#include <doctest/doctest.h>

#include "tests/support/catalogs.h"

namespace ckpt::app {
namespace {

using test::catalog;
using test::tensor;

// "name ×count" of each row
std::vector<std::string> shown(const std::vector<PatternRow>& rows) {
  std::vector<std::string> text;
  for (const PatternRow& row : rows)
    text.push_back(row.name + " ×" + std::to_string(row.count));
  return text;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("pattern: numbers that are a whole component") {
  CHECK(pattern_of("layers.12.w1") == "layers.#.w1");
  CHECK(pattern_of("h.0.experts.3.w") == "h.#.experts.#.w");
  CHECK(pattern_of("w1.fc2") == "w1.fc2");
  CHECK(pattern_of("experts.fc1.weight12") == "experts.fc1.weight#");
  CHECK(pattern_of("experts.fc1.bias0") == "experts.fc1.bias#");
  CHECK(pattern_of("weight_scale1.weight") == "weight_scale1.weight");
  CHECK(pattern_of("") == "");
  CHECK(pattern_of(".0.") == ".#.");
  CHECK(pattern_of("a.1234567890") == "a.1234567890");  // no such layer
}

TEST_CASE("pattern: one row for the same tensor of all layers") {
  const Catalog made = catalog({
      tensor("embed.weight", {100, 8}),
      tensor("layers.0.w1", {8, 8}),
      tensor("layers.0.w2", {8, 4}),
      tensor("layers.1.w1", {8, 8}),
      tensor("layers.1.w2", {8, 4}),
      tensor("head.7.weight", {8}),
  });
  const auto rows = pattern_rows(made, Kind::model);
  CHECK(shown(rows) == Lines{"embed.weight ×1", "layers.#.w1 ×2",
                             "layers.#.w2 ×2", "head.7.weight ×1"});
  CHECK(rows[1].bytes == 2 * 8 * 8 * 2);
  CHECK(rows[1].pieces == 2);
  CHECK(pattern_rows(made, Kind::optim).empty());
}

TEST_CASE("pattern: one row for grouped experts, two where shapes differ") {
  const Catalog made = catalog({
      tensor("layers.0.fc1.weight0", {8, 8}),
      tensor("layers.0.fc1.weight1", {8, 8}),
      tensor("layers.1.fc1.weight0", {8, 8}),
      tensor("layers.1.fc1.weight1", {8, 4}),
      tensor("layers.1.fc2.weight0", {8, 8}),
      tensor("layers.1.fc2.weight1", {8, 8}),
  });
  CHECK(shown(pattern_rows(made, Kind::model)) ==
        Lines{"layers.{0-1}.fc1.weight{0-1} ×3", "layers.1.fc1.weight1 ×1",
              "layers.1.fc2.weight# ×2"});
}

TEST_CASE("pattern: rows that differ say which numbers they hold") {
  const Catalog made = catalog({
      tensor("layers.0.w", {8, 8}),
      tensor("layers.1.w", {8, 8}),
      tensor("layers.2.w", {4, 8}),
      tensor("layers.3.w", {8, 8}),
      tensor("layers.4.w", {4, 8}),
      tensor("layers.5.w", {2, 8}),
  });
  CHECK(shown(pattern_rows(made, Kind::model)) ==
        Lines{"layers.{0-1,3}.w ×3", "layers.{2,4}.w ×2", "layers.5.w ×1"});
}

TEST_CASE("pattern: of many runs of numbers the first ones and the last") {
  Catalog made = catalog({});
  for (int layer = 0; layer < 18; ++layer)
    made.tensors.push_back(
        tensor("h." + std::to_string(layer) + ".w", {layer % 2 ? 4U : 8U, 8}));
  CHECK(shown(pattern_rows(made, Kind::model)) ==
        Lines{"h.{0,2,4,6,...,16}.w ×9", "h.{1,3,5,7,...,17}.w ×9"});
  made.tensors.resize(16);
  CHECK(shown(pattern_rows(made, Kind::model)) ==
        Lines{"h.{0,2,4,6,8,10,12,14}.w ×8", "h.{1,3,5,7,9,11,13,15}.w ×8"});
}

TEST_CASE("pattern: a number that never differs stays") {
  const Catalog made = catalog({
      tensor("layers.0.experts.0.w", {2}),
      tensor("layers.0.experts.1.w", {2}),
  });
  CHECK(shown(pattern_rows(made, Kind::model)) ==
        Lines{"layers.0.experts.#.w ×2"});
}

TEST_CASE("pattern: how a tensor is split") {
  CHECK(split_text(TpRule{}) == "");
  CHECK(split_text(TpRule::replicated()) == "replicated");
  CHECK(split_text(TpRule::split(1)) == "tp dim 1");
  CHECK(split_text(TpRule::split(0, 3)) == "tp dim 0 in 3 groups");
}

}  // namespace ckpt::app
