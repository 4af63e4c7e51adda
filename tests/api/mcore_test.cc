// SPDX-License-Identifier: Apache-2.0
#include "ckpt/mcore.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <numeric>

#include "ckpt/sharded.h"
#include "ckpt/trees.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

const std::string kCase = std::string(CKPT_TEST_DATA) +
                          "/megatron_torch_dist/gpt_optim_dp_reshardable_v0161";

}  // namespace

TEST_CASE("mcore: a factory that builds no tensors is refused by its key") {
  const auto data = std::make_shared<TensorData>();
  data->shape = {1};
  data->bytes.resize(4);
  const auto whole = [](const std::string& key, const mcore::TensorPtr& one,
                        const mcore::ReplicaId& replica,
                        const std::optional<FlatRange>&) {
    return mcore::State(
        mcore::from_rank_offsets(key, one, {}, {.replica = replica}));
  };
  const auto refused = [&](mcore::ShardedTensorFactory factory) {
    std::string message;
    try {
      mcore::rank_state(mcore::Dict{{"x", mcore::State(std::move(factory))}});
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      message = error.what();
    }
    return message;
  };
  const mcore::ShardedTensorFactory plain{
      .key = "inner", .data = data, .build = whole, .merge = {}};
  CHECK(refused(plain).empty());
  const mcore::ShardedTensorFactory nested{
      .key = "outer",
      .data = data,
      .build = [plain](auto&&...) { return mcore::State(plain); },
      .merge = {}};
  CHECK(refused(nested).find("outer: its factory builds another factory") !=
        std::string::npos);
  const mcore::ShardedTensorFactory none{
      .key = "none", .data = data, .build = {}, .merge = {}};
  CHECK(refused(none).find("none: its factory has no function that builds") !=
        std::string::npos);
}

namespace {

// A dict around lists and dicts in turn, `levels` of them.
mcore::State nested(size_t levels) {
  mcore::State inner = mcore::Json{"1"};
  for (size_t level = 0; level < levels; ++level) {
    if (level % 2 == 0) {
      mcore::Dict dict;
      dict["x"] = std::move(inner);
      inner = std::move(dict);
    } else {
      mcore::List list;
      list.push_back(std::move(inner));
      inner = std::move(list);
    }
  }
  return inner;
}

}  // namespace

TEST_CASE("mcore: a state deeper than the stack is refused by each function") {
  mcore::State deep = nested(100'001);
  const mcore::State plain = mcore::Dict{{"x", mcore::Json{"1"}}};
  const std::vector<std::pair<std::string, std::string>> map{{"a", "b"}};
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"copy", [&] { const mcore::State copy = deep; }},
      {"assign",
       [&] {
         mcore::State copy;
         copy = deep;
       }},
      {"add_prefix", [&] { mcore::add_prefix_for_sharding(deep, "p."); }},
      {"replace_prefix",
       [&] { mcore::replace_prefix_for_sharding(deep, "a", "b"); }},
      {"map_prefix", [&] { mcore::apply_prefix_mapping(deep, map); }},
      {"factories", [&] { mcore::apply_factories(deep); }},
      {"merges", [&] { mcore::apply_factory_merges(plain, deep); }},
      {"params", [&] { mcore::get_param_id_to_sharded_param_map(deep, {}); }},
      {"save", [&] { mcore::rank_state(deep); }},
      {"load", [&] { mcore::load(nested(100'001), kCase + "/ckpt"); }},
  };
  for (const auto& one : calls) {
    CAPTURE(one.first);
    CHECK_THROWS_WITH_AS(one.second(),
                         doctest::Contains("nests more than 200 levels deep"),
                         Error);
  }
  // A part of a state may take its place.
  mcore::State part = nested(99);
  part = std::move((*part.as<mcore::Dict>())["x"]);
  CHECK(part.as<mcore::List>() != nullptr);
  CHECK(!mcore::rank_state(nested(99)).common.empty());
}

TEST_CASE("mcore: text that nests deeper than the stack is refused") {
  const std::string text =
      std::string(300'000, '[') + std::string(300'000, ']');
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.code() == ExitCode::kUsage;
    }
    return false;
  };
  CHECK(refused([&] {
    mcore::rank_state(mcore::Dict{{"x", mcore::Json{text}}});
  }));
  CHECK(refused([&] { object_from_json("x", text); }));
  CHECK(refused([&] {
    mcore::optim_state_to_sharding_state({.state = {}, .groups = {{text, {}}}},
                                         {});
  }));
}

TEST_CASE(
    "mcore: fields that contradict each other are refused, not followed") {
  const auto good = [] {
    const auto data = std::make_shared<TensorData>();
    data->dtype = DType::u8;
    data->shape = {2, 3};
    data->bytes.resize(6);
    return mcore::from_rank_offsets("w", data, {{1, 0, 2}}, {});
  };
  const std::function<void(mcore::ShardedTensor&)> breakages[] = {
      [](mcore::ShardedTensor& t) { t.axis_fragmentations = Dims{2}; },
      [](auto& t) {
        t.axis_fragmentations = Dims{1, 2, 1};
      },
      [](mcore::ShardedTensor& t) { t.prepended_axes = 3; },
      [](mcore::ShardedTensor& t) { t.prepended_axes = UINT32_MAX; },
      [](mcore::ShardedTensor& t) { t.global_offset = Dims{0}; },
      [](mcore::ShardedTensor& t) { t.global_shape = Shape{}; },
      [](mcore::ShardedTensor& t) { t.local_shape = Shape{2}; },
  };
  for (size_t i = 0; i < std::size(breakages); ++i) {
    CAPTURE(i);
    mcore::ShardedTensor tensor = good();
    breakages[i](tensor);
    CHECK_THROWS_AS(tensor.validate(), Error);
    CHECK_THROWS_AS(tensor.chunk_offset(), Error);
    CHECK_THROWS_AS(tensor.max_allowed_chunks(), Error);
    CHECK_THROWS_AS(tensor.narrow(0, 0, 1), Error);
    tensor.data = nullptr;
    CHECK_THROWS_AS(tensor.init_data(), Error);
  }
  mcore::ShardedTensor tensor = good();
  tensor.data->bytes.resize(5);
  CHECK_THROWS_AS(tensor.narrow(0, 1, 1), Error);
  tensor = good().without_data();
  tensor.flattened_range = FlatRange{5, 2};
  CHECK_THROWS_AS(tensor.init_data(), Error);
}

TEST_CASE("mcore: common values are stored as they are given") {
  const test::TempDir dir;
  const auto data = std::make_shared<TensorData>();
  data->dtype = DType::u8;
  data->shape = {4};
  data->bytes.resize(4);
  std::string numbers = "[0";
  for (int i = 1; i < 150'000; ++i) numbers += ",7";
  numbers += "]";
  const RankState state = mcore::rank_state(mcore::Dict{
      {"w", mcore::State(mcore::from_rank_offsets("w", data, {}, {}))},
      {"large", mcore::Json{"123456789012345678901234567890"}},
      {"many", mcore::Json{numbers}}});
  Saver saver(1, {.format = "megatron_torch_dist"}, dir.file("out"),
              {.sync = false});
  saver.save(0, state);
  const auto common = load_common(dir.file("out"));
  CHECK(common.at("large") == R"({"!int":"123456789012345678901234567890"})");
  CHECK(common.at("many") == numbers);
  CHECK_THROWS_WITH_AS(
      mcore::rank_state(mcore::Dict{{"x", mcore::Json{R"({"a":1,"a":2})"}}}),
      doctest::Contains("given twice"), Error);
}

}  // namespace ckpt
