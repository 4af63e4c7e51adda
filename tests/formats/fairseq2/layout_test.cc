// SPDX-License-Identifier: Apache-2.0
// fairseq2's cuts, against brute force and against numbers from torch.
#include "formats/fairseq2/layout.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

#include "ckpt/error.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/fairseq2/flat.h"
#include "formats/fairseq2/groups.h"
#include "formats/fairseq2/order.h"
#include "tests/support/assemble.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::fairseq2 {
namespace {

TEST_CASE("place: the ranks' boxes cover the tensor once, in local order") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto tp = static_cast<uint32_t>(1 + random() % 4);
    const auto groups = static_cast<uint32_t>(1 + random() % 3);
    const auto dim = static_cast<uint32_t>(random() % 2);
    const auto dp = static_cast<uint32_t>(1 + random() % 5);
    Shape global{1 + random() % 7, 1 + random() % 5};
    global[dim] = tp * groups * (1 + random() % 4);
    const TpRule rule = TpRule::split(dim, groups);
    REQUIRE(divides(global, rule, tp));
    const Shape local = tp_local(global, rule, tp);
    CHECK(tp_global(local, rule, tp) == global);
    std::multiset<std::pair<uint64_t, uint64_t>> seen;
    for (uint32_t rank = 0; rank < tp; ++rank) {
      for (uint32_t s = 0; s < dp; ++s) {
        const Rows rows = cuts::chunk(local[0], dp, s);
        for (const cuts::Part& part : place(global, rule, tp, rank, rows)) {
          for (uint64_t i = 0; i < part.box.shape[0]; ++i) {
            for (uint64_t j = 0; j < part.box.shape[1]; ++j) {
              const uint64_t at[] = {part.box.offset[0] + i,
                                     part.box.offset[1] + j};
              seen.emplace(at[0], at[1]);
              // Group g of the local dimension is part `rank` of group g.
              const uint64_t in_local =
                  part.at[dim] + (dim == 0 ? rows.begin + i : j);
              const uint64_t width = local[dim] / groups;
              const uint64_t g = in_local / width;
              CHECK(at[dim] == (g * tp + rank) * width + in_local % width);
            }
          }
        }
      }
    }
    CHECK(seen.size() == global[0] * global[1]);
    CHECK(std::set(seen.begin(), seen.end()).size() == seen.size());
  }
}

TEST_CASE("divides and tp_global: no overflow, no missing dimension") {
  CHECK(!divides({6}, TpRule::split(1), 2));
  CHECK(!divides({6}, TpRule::split(0), 4));
  CHECK(!divides({6}, TpRule::split(0, 2), 2));
  CHECK(divides({6}, TpRule::replicated(), 4));
  CHECK(!tp_global({6}, TpRule::split(1), 2));
  CHECK(!tp_global({UINT64_MAX / 2}, TpRule::split(0), 4));
}

TEST_CASE("layer names") {
  CHECK(layer_of("decoder.layers.7.ffn.inner_proj.weight").index == 7);
  CHECK(layer_of("decoder.layers.7.ffn.inner_proj.weight").rest ==
        "ffn.inner_proj.weight");
  CHECK(layer_of("w2v2_model.encoder.layers.0.x").stack ==
        "w2v2_model.encoder");
  for (const char* name :
       {"decoder.layer_norm.weight", "decoder.layers.x.y", "decoder.layers.",
        "decoder.layers.1", "encoder_frontend.extractor.layers.0.conv.weight",
        "other.layers.0.x", "decoder.layers.99999999999999999999.x"}) {
    CAPTURE(name);
    CHECK(layer_of(name).stack.empty());
  }
}

TEST_CASE("module order: names in any order come out as fairseq2 has them") {
  for (const std::string path :
       {"olmo2_tp2dp1", "nllb_tp2dp1", "qwen25_tp4dp1_mixed",
        "qwen3_dp3_uneven_fsdp2", "llama_tp1dp1_bf16"}) {
    CAPTURE(path);
    const Catalog catalog = make_reader()->read_catalog(
        test::data("fairseq2_native/" + path + "/ckpt"), {});
    std::vector<std::string> expected;
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) expected.push_back(tensor.name);
    std::vector<std::string> names = expected;
    std::ranges::sort(names);
    sort_by_module(names, catalog.family);
    CHECK(names == expected);
  }
}

TEST_CASE("pipeline stages") {
  std::vector<std::string> names{"decoder_frontend.embed.weight"};
  for (int i = 0; i < 5; ++i)
    names.push_back("decoder.layers." + std::to_string(i) + ".x.weight");
  names.push_back("decoder.layer_norm.weight");
  names.push_back("final_proj.weight");
  std::string assumption;
  CHECK(assign_stages(names, 2, assumption) ==
        std::vector<uint32_t>{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(assumption ==
        "pipeline stages: layers 0-2 | 3-4; frontend first, norm and "
        "projection last");
  CHECK(assign_stages({"encoder_frontend.x", "encoder.layers.0.x",
                       "encoder.layer_norm.weight", "decoder_frontend.x",
                       "decoder.layers.0.x", "final_proj.weight"},
                      2,
                      assumption) == std::vector<uint32_t>{0, 0, 0, 0, 1, 1});
  CHECK_THROWS_WITH_AS(assign_stages(names, 6, assumption),
                       doctest::Contains("6 pipeline stages for 5 layers"),
                       Error);
}

TEST_CASE("FSDP1's slices: those of a run of fairseq2 over 3 ranks") {
  // goldens' qwen3_dp3_uneven_fsdp1: elements of exp_avg on each rank.
  const std::vector<FlatParameter> parameters = {
      {"decoder_frontend.embed.weight", 740, 2},
      {"decoder.layer_norm.weight", 20, 2},
      {"final_proj.weight", 740, 2},
  };
  const auto slices = flat_slices(parameters, 3, Granularity::kLayer);
  CHECK(slices[0] == std::vector<FlatRange>{{0, 503}, {503, 740}, {740, 740}});
  CHECK(slices[2] == std::vector<FlatRange>{{0, 0}, {0, 238}, {238, 740}});
}

std::vector<std::string> names_of(
    const std::vector<std::vector<uint64_t>>& groups,
    const std::map<uint64_t, Signature>& signatures) {
  const std::vector<Parameter> order = {{"a.weight", {4, 4}},
                                        {"a.bias", {4}},
                                        {"b.weight", {4, 4}},
                                        {"b.bias", {4}},
                                        {"norm.weight", {4}}};
  return name_numbers(groups, order, signatures, "file");
}

TEST_CASE("parameter numbers: by order, or by the only way shapes allow") {
  std::map<uint64_t, Signature> plain;
  const auto set = [&](uint64_t number, Shape shape) {
    plain[number] = {std::move(shape), true, false};
  };
  CHECK(names_of({{0, 1, 2, 3, 4}}, plain)[2] == "b.weight");
  // Weights first, then parameters without decay.
  set(0, {4, 4}), set(1, {4, 4}), set(2, {4}), set(3, {4}), set(4, {4});
  CHECK(names_of({{0, 1}, {2, 3, 4}}, plain) ==
        std::vector<std::string>{"a.weight", "b.weight", "a.bias", "b.bias",
                                 "norm.weight"});
  // Two groups of one-dimensional parameters can't be told apart.
  CHECK_THROWS_WITH_AS(names_of({{0, 1}, {2}, {3, 4}}, plain),
                       doctest::Contains("2 of the 3 parameter groups may"),
                       Error);
  CHECK_THROWS_WITH_AS(names_of({{0, 1, 2, 3}}, {}),
                       doctest::Contains("4 parameters, the model's files "
                                         "hold 5"),
                       Error);
  set(0, {9});
  CHECK_THROWS_WITH_AS(names_of({{0, 1, 2, 3, 4}}, plain),
                       doctest::Contains("none of the 1 parameter groups"),
                       Error);
}

TEST_CASE("a dimension that is split in groups goes there and back") {
  const test::TempFile rules(
      R"({"*.ffn.inner_proj.weight": {"dim": 0, "groups": 3},
          "*.ffn.output_proj.weight": {"dim": 1, "groups": 4}})",
      "rules.json");
  formats::ReadOptions options;
  options.shard_dims_file = rules.path;
  const Catalog source = make_reader()->read_catalog(
      test::data("fairseq2_native/llama_tp1dp1_bf16/ckpt"), options);
  Layout layout;
  layout.topology = {.tp = 2, .pp = 1, .dp = 3};
  const test::TempDir dir;
  test::write_files(source, make_writer()->lay_out(source, layout), dir.path);
  const Catalog again = make_reader()->read_catalog(dir.path, options);
  for (const Tensor& tensor : source.tensors) {
    CAPTURE(tensor.name);
    const Tensor* found = again.find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(test::assemble(again, *found) == test::assemble(source, tensor));
  }
  // Without the rules the tensor differs: 48 rows as 2 halves.
  const Catalog other = make_reader()->read_catalog(dir.path, {});
  const std::string name = "decoder.layers.0.ffn.inner_proj.weight";
  CHECK(test::assemble(other, *other.find(name)) !=
        test::assemble(source, *source.find(name)));
}

}  // namespace
}  // namespace ckpt::fairseq2
