// SPDX-License-Identifier: Apache-2.0
#include "formats/rank_cut.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "formats/meta/layout.h"
#include "formats/vllm/layout.h"

namespace ckpt::formats {
namespace {

// "0:8 1:4": where each run of the part starts in the whole, and its size.
std::string runs(const Cut& cut, const Shape& shape, uint32_t ranks,
                 uint32_t rank) {
  std::string text;
  uint64_t at = 0;
  for (const cuts::Part& part : parts_of(cut, shape, ranks, rank)) {
    CHECK(part.at[cut.dim] == at);
    at += part.box.shape[cut.dim];
    text += (text.empty() ? "" : " ") +
            std::to_string(part.box.offset[cut.dim]) + ":" +
            std::to_string(part.box.shape[cut.dim]);
  }
  CHECK(at == local_shape(cut, shape, ranks)[cut.dim]);
  return text;
}

TEST_CASE("rank cut: segments of unequal size, each cut on its own") {
  // 8 rows of queries, 4 of keys, 4 of values, of 2 key/value heads.
  const auto qkv = [](uint32_t repeat) {
    return Cut{.dim = 0, .segments = {{8, 1}, {4, repeat}, {4, repeat}}};
  };
  struct Row {
    uint32_t ranks, repeat, rank;
    const char* runs;
  };
  const Row rows[] = {
      {1, 1, 0, "0:8 8:4 12:4"},  {2, 1, 0, "0:4 8:2 12:2"},
      {2, 1, 1, "4:4 10:2 14:2"}, {4, 2, 0, "0:2 8:2 12:2"},
      {4, 2, 1, "2:2 8:2 12:2"},  {4, 2, 2, "4:2 10:2 14:2"},
      {8, 4, 5, "5:1 10:2 14:2"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.ranks);
    CAPTURE(row.rank);
    const Cut cut = qkv(row.repeat);
    CHECK(fits(cut, {16, 3}, row.ranks));
    CHECK(runs(cut, {16, 3}, row.ranks, row.rank) == row.runs);
  }
  CHECK_FALSE(fits(qkv(1), {16, 3}, 3));
  CHECK_FALSE(fits(qkv(3), {16, 3}, 4));
  CHECK_FALSE(fits(qkv(1), {17, 3}, 2));
  CHECK_FALSE(fits({.dim = 2, .segments = {{16, 1}}}, {16, 3}, 2));
}

TEST_CASE("rank cut: pieces of a part lie where their rows do") {
  Tensor tensor;
  tensor.dtype = DType::bf16;
  tensor.shape = {3, 8};
  // Columns: each row of the rank's [3, 4] is 8 bytes, from byte 100.
  add_pieces(Cut::even(1, 8), 2, 1, {.offset = 100, .file = 5}, 0, tensor);
  REQUIRE(tensor.pieces.size() == 1);
  CHECK(tensor.pieces[0].box == Box{{0, 4}, {3, 4}});
  CHECK(tensor.pieces[0].extent.strides.empty());
  // Two groups of columns: neither is contiguous.
  tensor.pieces.clear();
  add_pieces(Cut::even(1, 8, 2), 2, 1, {.offset = 100, .file = 5}, 0, tensor);
  REQUIRE(tensor.pieces.size() == 2);
  CHECK(tensor.pieces[1].box == Box{{0, 6}, {3, 2}});
  CHECK(tensor.pieces[1].extent.offset == 104);
  CHECK(tensor.pieces[1].extent.strides == Dims{8, 2});
}

TEST_CASE("rank cut: pieces of a target are contiguous") {
  Tensor tensor;
  tensor.dtype = DType::f32;
  tensor.shape = {2, 8, 3};
  add_target_pieces(Cut::even(1, 8, 2), 2, 1, 0, 1000, tensor);
  REQUIRE(tensor.pieces.size() == 4);
  const Box boxes[] = {{{0, 2, 0}, {1, 2, 3}},
                       {{1, 2, 0}, {1, 2, 3}},
                       {{0, 6, 0}, {1, 2, 3}},
                       {{1, 6, 0}, {1, 2, 3}}};
  const uint64_t offsets[] = {1000, 1048, 1024, 1072};
  for (size_t i = 0; i < 4; ++i) {
    CHECK(tensor.pieces[i].box == boxes[i]);
    CHECK(tensor.pieces[i].extent.offset == offsets[i]);
    CHECK(tensor.pieces[i].extent.strides.empty());
  }
}

// Every cut of up to three segments of up to six elements over up to six ranks:
// each rank's parts fill its shard without gaps, and each element of the whole
// is on `repeat` neighbouring ranks.
TEST_CASE("rank cut: all small cuts cover the whole") {
  size_t fitting = 0;
  const auto check = [&](const Cut& cut, uint64_t size, uint32_t ranks) {
    const Shape shape{size, 2};
    if (!fits(cut, shape, ranks)) return;
    ++fitting;
    std::vector<std::vector<uint32_t>> holders(size);
    size_t wrong = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      uint64_t at = 0;
      for (const cuts::Part& part : parts_of(cut, shape, ranks, rank)) {
        wrong += part.at[0] != at;
        const uint64_t begin = part.box.offset[0];
        for (uint64_t i = 0; i < part.box.shape[0]; ++i)
          holders.at(begin + i).push_back(rank);
        at += part.box.shape[0];
      }
      wrong += at != local_shape(cut, shape, ranks)[0];
    }
    uint64_t begin = 0;
    for (const Segment& segment : cut.segments) {
      const uint64_t run = segment.size / (ranks / segment.repeat);
      for (uint64_t i = 0; i < segment.size; ++i) {
        std::vector<uint32_t> want(segment.repeat);
        for (uint32_t r = 0; r < segment.repeat; ++r)
          want[r] = static_cast<uint32_t>(i / run) * segment.repeat + r;
        wrong += holders[begin + i] != want;
      }
      begin += segment.size;
    }
    CHECK(wrong == 0);
  };
  for (uint32_t ranks = 1; ranks <= 6; ++ranks)
    for (uint64_t a = 1; a <= 6; ++a)
      for (uint32_t repeat = 1; repeat <= ranks; ++repeat) {
        check({.dim = 0, .segments = {{a, repeat}}}, a, ranks);
        for (uint64_t b = 1; b <= 6; ++b) {
          check({.dim = 0, .segments = {{a, 1}, {b, repeat}}}, a + b, ranks);
          for (uint64_t c = 1; c <= 6; ++c)
            check({.dim = 0, .segments = {{a, repeat}, {b, 1}, {c, repeat}}},
                  a + b + c, ranks);
        }
      }
  CHECK(fitting > 700);
}

TEST_CASE("meta: what names are") {
  using meta::Role;
  struct Row {
    const char* name;
    Role role;
  };
  const Row rows[] = {
      {"tok_embeddings.weight", Role::kEmbedding},
      {"output.weight", Role::kRows},
      {"layers.0.attention.wk.weight", Role::kKey},
      {"layers.125.feed_forward.w2.weight", Role::kColumns},
      {"layers.1.feed_forward.experts.7.w2.weight", Role::kColumns},
      {"layers.x.attention.wk.weight", Role::kUnknown},
      {"layers.0.attention.wk.bias", Role::kUnknown},
      {"layers.0", Role::kUnknown},
      {"vision.layers.0.attention.wk.weight", Role::kUnknown},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(meta::role_of(row.name) == row.role);
  }
  CHECK(meta::order_of("layers.2.attention.wq.weight") <
        meta::order_of("layers.10.ffn_norm.weight"));
  CHECK(meta::order_of("layers.2.feed_forward.w3.weight") <
        meta::order_of("rope.freqs"));
}

TEST_CASE("vllm: what tensors are") {
  using vllm::Role;
  struct Row {
    const char* name;
    DType dtype;
    Shape shape;
    Role role;
  };
  const Row rows[] = {
      {"model.layers.0.self_attn.qkv_proj.weight",
       DType::bf16,
       {6, 4},
       Role::kQkv},
      {"model.layers.0.self_attn.qkv_proj.bias", DType::bf16, {6}, Role::kQkv},
      {"model.layers.0.self_attn.qkv_proj.weight",
       DType::f8_e4m3,
       {6, 4},
       Role::kUnknown},
      {"model.layers.0.self_attn.qkv_proj.weight_scale",
       DType::f32,
       {6},
       Role::kUnknown},
      {"model.layers.0.self_attn.attn._k_scale", DType::f32, {}, Role::kWhole},
      {"model.layers.0.self_attn.q_norm.weight", DType::f32, {6}, Role::kWhole},
      {"model.layers.0.mlp.experts.w2_weight",
       DType::f16,
       {2, 3, 4},
       Role::kDown2},
      {"embed_tokens.weight", DType::f32, {64, 4}, Role::kVocab},
      {"weight", DType::f32, {64, 4}, Role::kUnknown},
      {"", DType::f32, {1}, Role::kUnknown},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(vllm::role_of(row.name, row.dtype, row.shape) == row.role);
  }
}

}  // namespace
}  // namespace ckpt::formats
