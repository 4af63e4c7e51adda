// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>

#include "ckpt/ckpt.h"
#include "lib/text/glob.h"
#include "tests/support/tensor_data.h"

// reshard_tensor and lazy_load, as fairseq2 documents its functions of the same
// names: shards of data-parallel ranks are rows, shards of tensor-parallel
// ranks are parts of one dimension, everything else is the same on every rank.

namespace ckpt {
namespace {

using test::range;
using test::tensor;
using test::values;

const std::string kCase =
    std::string(CKPT_TEST_DATA) + "/fairseq2_native/llama_tp2dp2_fsdp2";

}  // namespace

TEST_CASE("reshard_tensor: two tensor-parallel ranks become four") {
  // [8, 2] over tp=2 along dimension 0, to rank 2 of tp=4: rows 4 and 5.
  const std::vector<TensorData> rows{tensor({4, 2}, range(0, 8)),
                                     tensor({4, 2}, range(8, 16))};
  const TensorData part =
      reshard_tensor(rows, {.tp = 2}, {.tp = 4}, {.tp = 2}, TpRule::split(0));
  CHECK(part.shape == Shape{2, 2});
  CHECK(values(part) == range(8, 12));
  // Along dimension 1: [2, 4] over two, each holds two columns.
  const std::vector<TensorData> columns{tensor({2, 2}, {0, 1, 4, 5}),
                                        tensor({2, 2}, {2, 3, 6, 7})};
  const TensorData column = reshard_tensor(columns, {.tp = 2}, {.tp = 4},
                                           {.tp = 3}, TpRule::split(1));
  CHECK(column.shape == Shape{2, 1});
  CHECK(values(column) == std::vector<uint8_t>{3, 7});
  CHECK(values(reshard_tensor(columns, {.tp = 2}, {}, {}, TpRule::split(1))) ==
        range(0, 8));
}

TEST_CASE("reshard_tensor: data-parallel shards are joined along rows") {
  const std::vector<TensorData> shards{
      tensor({2, 1}, {0, 1}), tensor({2, 1}, {2, 3}), tensor({1, 1}, {4})};
  const TensorData whole =
      reshard_tensor(shards, {.dp = 3}, {}, {}, TpRule::replicated());
  CHECK(whole.shape == Shape{5, 1});
  CHECK(values(whole) == range(0, 5));
  // Cut again: ceil(5 / 2) rows, then the rest. A rank may get none.
  CHECK(values(reshard_tensor(shards, {.dp = 3}, {.dp = 2}, {.dp = 1},
                              TpRule::replicated())) ==
        std::vector<uint8_t>{3, 4});
  const TensorData none = reshard_tensor(shards, {.dp = 3}, {.dp = 4},
                                         {.dp = 3}, TpRule::replicated());
  CHECK(none.shape == Shape{0, 1});
}

TEST_CASE("reshard_tensor: rows first, then tensor-parallel parts") {
  // tp=2 x dp=2 of [2, 4] along dimension 1.
  const std::vector<TensorData> shards{
      tensor({1, 2}, {0, 1}), tensor({1, 2}, {4, 5}), tensor({1, 2}, {2, 3}),
      tensor({1, 2}, {6, 7})};
  CHECK(values(reshard_tensor(shards, {.tp = 2, .dp = 2}, {}, {},
                              TpRule::split(1))) == range(0, 8));
}

TEST_CASE("reshard_tensor: groups are split one by one") {
  // Two groups of four rows; tp=2: rank 0 holds rows 0, 1, 4, 5.
  const std::vector<TensorData> shards{tensor({4}, {0, 1, 4, 5}),
                                       tensor({4}, {2, 3, 6, 7})};
  const TpRule rule = TpRule::split(0, 2);
  CHECK(values(reshard_tensor(shards, {.tp = 2}, {}, {}, rule)) == range(0, 8));
  CHECK(values(reshard_tensor(shards, {.tp = 2}, {.tp = 4}, {.tp = 1}, rule)) ==
        std::vector<uint8_t>{1, 5});
}

TEST_CASE("reshard_tensor: replicated tensors, and what is refused") {
  const std::vector<TensorData> same{tensor({2}, {1, 2}), tensor({2}, {1, 2})};
  CHECK(values(reshard_tensor(same, {.tp = 2}, {.tp = 8}, {.tp = 5},
                              TpRule::replicated())) ==
        std::vector<uint8_t>{1, 2});
  const std::vector<TensorData> unlike{tensor({2}, {1, 2}),
                                       tensor({2}, {1, 3})};
  CHECK_THROWS_WITH_AS(
      reshard_tensor(unlike, {.tp = 2}, {}, {}, TpRule::replicated()),
      doctest::Contains("this copy differs"), Error);
  // The peer silently drops the remainder of 4 x 2 rows over three ranks.
  const std::vector<TensorData> eight{tensor({4}, range(0, 4)),
                                      tensor({4}, range(4, 8))};
  CHECK_THROWS_WITH_AS(
      reshard_tensor(eight, {.tp = 2}, {.tp = 3}, {}, TpRule::split(0)),
      doctest::Contains("is not a multiple of tp 3"), Error);
  CHECK_THROWS_AS(reshard_tensor(eight, {.tp = 2}, {.tp = 4}, {}, TpRule{}),
                  Error);
  CHECK_THROWS_AS(reshard_tensor(eight, {.tp = 4}, {}, {}, TpRule::split(0)),
                  Error);
  const std::vector<TensorData> short_one{tensor({4, 64}, {1, 2, 3})};
  CHECK_THROWS_WITH_AS(
      reshard_tensor(short_one, {}, {}, {}, TpRule::replicated()),
      doctest::Contains("has 3 bytes"), Error);
  TpRule none = TpRule::split(0);
  none.groups = 0;
  CHECK_THROWS_WITH_AS(reshard_tensor(eight, {.tp = 2}, {.tp = 4}, {}, none),
                       doctest::Contains("no groups"), Error);
}

TEST_CASE("lazy_load: the shards of every rank are what the peer wrote") {
  // other/tp4dp1 is the same model as fairseq2 wrote it at tp=4.
  const Checkpoint source = open(kCase + "/ckpt");
  for (uint32_t tp = 0; tp < 4; ++tp) {
    const std::string file = kCase + "/other/tp4dp1/step_3/model/pp_00/tp_0" +
                             std::to_string(tp) + "/sdp_00.pt";
    const Checkpoint peer = open(file);
    size_t seen = 0;
    LazyLoad shards = source.lazy_load({.tp = 4}, {.tp = tp});
    while (auto shard = shards.next()) {
      if (!peer.catalog().find(shard->first)) continue;  // optimizer state
      const TensorData expected = peer.read(shard->first);
      CHECK(shard->second.shape == expected.shape);
      CHECK(shard->second.bytes == expected.bytes);
      ++seen;
    }
    CHECK(seen == peer.catalog().tensors.size());
  }
}

// What Megatron's rank (tp, pp, ep) saved, identified by the file that holds
// its pieces.
struct RankFile {
  std::string folder;
  Topology topology;
  Rank rank;
};

TEST_CASE("lazy_load: pipeline stages and experts are those of Megatron") {
  const std::string root = std::string(CKPT_TEST_DATA) + "/megatron_legacy/";
  const auto file = [](const RankFile& row) {
    std::string name = fmt::format("mp_rank_{:02}", row.rank.tp);
    if (row.topology.pp > 1) name += fmt::format("_{:03}", row.rank.pp);
    if (row.topology.ep > 1) name += fmt::format("_{:03}", row.rank.ep);
    return "/" + name + "/";
  };
  std::vector<RankFile> rows;
  const auto add = [&](const std::string& folder, const Topology& topology) {
    for (uint32_t tp = 0; tp < topology.tp; ++tp)
      for (uint32_t pp = 0; pp < topology.pp; ++pp)
        for (uint32_t ep = 0; ep < topology.ep; ++ep)
          rows.push_back({folder, topology, {.tp = tp, .pp = pp, .ep = ep}});
  };
  add("llama_te_tp2_pp2", {.tp = 2, .pp = 2});
  add("lm_llama_pp2_bf16", {.tp = 2, .pp = 2});
  add("gpt_te_tied_pp2_distopt_buckets", {.pp = 2});
  add("moe_seq_pp2_ep2_release", {.pp = 2, .ep = 2});
  add("moe_te_tp2_ep2_etp2", {.tp = 2, .ep = 2});
  for (const RankFile& row : rows) {
    CAPTURE(row.folder);
    CAPTURE(file(row));
    const Checkpoint source = open(root + row.folder + "/ckpt");
    const Catalog& catalog = source.catalog();
    std::map<std::string, std::vector<Box>> saved;
    for (const Tensor& tensor : catalog.tensors)
      for (const Piece& piece : tensor.pieces)
        if (tensor.kind == Kind::model &&
            catalog.files[piece.extent.file].path.find(file(row)) !=
                std::string::npos)
          saved[tensor.name].push_back(piece.box);
    REQUIRE_FALSE(saved.empty());
    LazyLoad shards = source.lazy_load(row.topology, row.rank);
    std::set<std::string> seen;
    while (auto shard = shards.next()) {
      if (catalog.find(shard->first)->kind != Kind::model) continue;
      seen.insert(shard->first);
      CAPTURE(shard->first);
      REQUIRE(saved.contains(shard->first));
      const std::vector<Box>& boxes = saved[shard->first];
      if (boxes.size() != 1) continue;  // gate and up, or rows of q, k and v
      CHECK(shard->second.shape == boxes[0].shape);
      CHECK(shard->second.bytes == source.read(shard->first, boxes[0]).bytes);
    }
    CHECK(seen.size() == saved.size());
  }
}

TEST_CASE("lazy_load: stacked layers and experts, over every rank once") {
  const std::string root = std::string(CKPT_TEST_DATA) + "/";
  for (const char* folder :
       {"megatron_torch_dist/moe_tp1_ep2_pp2_v0161/ckpt", "hf/mixtral_f32/ckpt",
        "hf/qwen3_moe_bf16/ckpt", "hf/deepseek_v3_mtp_bf16/ckpt"}) {
    CAPTURE(folder);
    const Checkpoint source = open(root + folder);
    const Topology topology{.pp = 2, .ep = 2};
    std::map<std::string, std::set<std::vector<std::byte>>> parts;
    std::map<std::string, uint64_t> elements;
    for (uint32_t pp = 0; pp < 2; ++pp)
      for (uint32_t ep = 0; ep < 2; ++ep) {
        LazyLoad shards = source.lazy_load(topology, {.pp = pp, .ep = ep});
        while (auto shard = shards.next()) {
          const auto& [name, data] = *shard;
          if (parts[name].insert(data.bytes).second)
            elements[name] += data.bytes.size();
        }
      }
    for (const Tensor& tensor : source.catalog().tensors) {
      CAPTURE(tensor.name);
      CHECK(elements[tensor.name] == byte_size(tensor));
    }
  }
  CHECK_THROWS_AS(open(root + "hf/qwen3_bf16/ckpt").lazy_load({.pp = 99}, {}),
                  Error);
  CHECK_THROWS_AS(open(root + "hf/mixtral_f32/ckpt").lazy_load({.ep = 3}, {}),
                  Error);
  CHECK_THROWS_AS(open(root + "hf/mixtral_f32/ckpt").lazy_load({}, {.pp = 1}),
                  Error);
}

TEST_CASE("lazy_load: names of transformers and of dialects are cut") {
  const Checkpoint source = open(CKPT_TEST_DATA "/hf/llama/ckpt");
  for (const std::string dialect :
       {"", "hf", "mcore", "meta", "fairseq2", "olmo_core"}) {
    CAPTURE(dialect);
    const Checkpoint named(dialect.empty()
                               ? source.catalog()
                               : into_dialect(source.catalog(),
                                              source.catalog().format,
                                              {.dialect = dialect}));
    size_t cut = 0;
    LazyLoad shards = named.lazy_load({.tp = 2}, {.tp = 1});
    while (auto shard = shards.next())
      cut += shard->second.shape != named.catalog().find(shard->first)->shape;
    CHECK(cut == (dialect == "mcore" ? 10 : 16));
  }
  CHECK_THROWS_WITH_AS(source.lazy_load({.tp = 4}, {}),
                       doctest::Contains("4 ranks can't share 2 key/value "
                                         "heads"),
                       Error);
  const Checkpoint back(into_dialect(
      into_dialect(open(CKPT_TEST_DATA "/meta/llama/ckpt").catalog(), "meta",
                   {.dialect = "hf"}),
      "meta", {.dialect = "mcore"}));
  CHECK(back.catalog().find("decoder.final_layernorm.weight"));
}

TEST_CASE("lazy_load: of some names a rank gets those that it has of all") {
  const std::string data = CKPT_TEST_DATA;
  struct Row {
    std::string path;
    Topology topology;
    std::vector<std::string> keys;
    size_t found;  // by all ranks together
  };
  const Row rows[] = {
      {data + "/hf/llama/ckpt", {.pp = 2}, {"*layers.0.mlp*"}, 3},
      {data + "/hf/llama/ckpt",
       {.tp = 2, .pp = 2},
       {"*layers.1.*", "*norm*"},
       24},
      {data + "/megatron_legacy/moe_seq_pp2_ep2_release/ckpt",
       {.pp = 2, .ep = 2},
       {"*experts.0.*", "*experts.3.*"},
       8},
  };
  for (const Row& row : rows) {
    CAPTURE(row.path);
    const Checkpoint source = open(row.path);
    size_t found = 0;
    for (uint32_t tp = 0; tp < row.topology.tp; ++tp)
      for (uint32_t pp = 0; pp < row.topology.pp; ++pp)
        for (uint32_t ep = 0; ep < row.topology.ep; ++ep) {
          const Rank rank{.tp = tp, .pp = pp, .ep = ep};
          LazyLoad all = source.lazy_load(row.topology, rank);
          LazyLoad some = source.lazy_load(row.topology, rank, row.keys);
          while (const auto one = all.next()) {
            if (std::ranges::none_of(row.keys, [&](const std::string& key) {
                  return text::Glob(key).matches(one->first);
                }))
              continue;
            const auto same = some.next();
            REQUIRE(same);
            CHECK(same->first == one->first);
            CHECK(same->second.shape == one->second.shape);
            CHECK(same->second.bytes == one->second.bytes);
            ++found;
          }
          CHECK_FALSE(some.next());
        }
    CHECK(found == row.found);
    CHECK_THROWS_WITH_AS(source.lazy_load(row.topology, {}, {"nothing*"}),
                         doctest::Contains("matches none of the"), Error);
  }
}

}  // namespace ckpt
