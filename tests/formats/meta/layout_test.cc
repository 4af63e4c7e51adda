// SPDX-License-Identifier: Apache-2.0
// Cuts as in Meta's model.py: ColumnParallelLinear wq, wk, wv, w1, w3 and
// output by rows, RowParallelLinear wo and w2 by columns, ParallelEmbedding by
// columns.
#include "formats/meta/layout.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "formats/meta/locate.h"
#include "tests/support/temp_file.h"

namespace ckpt::meta {

TEST_CASE("meta: along which dimension ranks share a tensor") {
  struct Row {
    const char* name;
    Shape local, whole;  // of 2 ranks
  };
  const Row rows[] = {
      {"layers.0.attention.wq.weight", {32, 64}, {64, 64}},
      {"layers.0.attention.wk.weight", {16, 64}, {32, 64}},
      {"layers.0.attention.wo.weight", {64, 32}, {64, 64}},
      {"layers.3.feed_forward.w1.weight", {80, 64}, {160, 64}},
      {"layers.3.feed_forward.w2.weight", {64, 80}, {64, 160}},
      {"layers.3.feed_forward.w3.weight", {80, 64}, {160, 64}},
      {"output.weight", {50, 64}, {100, 64}},
      {"norm.weight", {64}, {64}},
      {"layers.0.attention_norm.weight", {64}, {64}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const auto cut = stored_cut("x", row.name, row.local, 2, {}, 64);
    REQUIRE(cut);
    CHECK(formats::fits(*cut, row.whole, 2));
    CHECK(formats::local_shape(*cut, row.whole, 2) == row.local);
    CHECK(cut->whole() == (row.local == row.whole));
  }
  CHECK_FALSE(
      stored_cut("x", "layers.0.attention.wx.weight", {4, 4}, 2, {}, 4));
}

TEST_CASE("meta: an embedding's cut shows in its width") {
  // Llama 1 and 2 cut columns, Llama 3 rows; dim tells which it was.
  const std::string_view name = "tok_embeddings.weight";
  CHECK(stored_cut("x", name, {100, 32}, 2, {}, 64)->dim == 1);
  CHECK(stored_cut("x", name, {50, 64}, 2, {}, 64)->dim == 0);
  CHECK_THROWS_AS(stored_cut("x", name, {50, 48}, 2, {}, 64), Error);
}

TEST_CASE("meta: files of all ranks, in order, without a gap") {
  const test::TempDir dir;
  CHECK_THROWS_AS(locate(dir.path), Error);
  for (uint32_t rank = 0; rank < 11; ++rank) dir.write(file_name(rank), "");
  dir.write("consolidated.1.pth", "");  // not Meta's spelling
  dir.write("consolidated.+1.pth", "");
  dir.write("consolidated.xx.pth", "");
  const auto files = locate(dir.path);
  REQUIRE(files.size() == 11);
  CHECK(files[2] == "consolidated.02.pth");
  CHECK(files[10] == "consolidated.10.pth");
  dir.write("consolidated.12.pth", "");
  CHECK_THROWS_WITH_AS(locate(dir.path), doctest::Contains("11"), Error);
}

}  // namespace ckpt::meta
