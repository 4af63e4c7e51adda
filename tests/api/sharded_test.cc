// SPDX-License-Identifier: Apache-2.0
#include "ckpt/sharded.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "ckpt/trees.h"
#include "formats/format.h"
#include "formats/megatron/integrity.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

const std::string kMegatron =
    std::string(CKPT_TEST_DATA) + "/megatron_torch_dist/";
const std::string kCase = kMegatron + "gpt_optim_dp_reshardable_v0161";

// A copy that may be changed (goldens are read-only).
void copy_to(const std::string& from, const std::string& to) {
  fs::copy(from, to, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(to))
    fs::permissions(entry, fs::perms::owner_all, fs::perm_options::add);
  fs::permissions(to, fs::perms::owner_all, fs::perm_options::add);
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> names_of(const ShardedMetadata& metadata) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : metadata.tensors)
    names.push_back(name + " " + to_string(tensor.shape));
  for (const auto& [name, object] : metadata.objects)
    names.push_back(name + " of " + to_string(object.grid));
  return names;
}

}  // namespace

TEST_CASE("Saver: an object and a common value of one name are refused") {
  for (const char* format : {"dcp", "megatron_torch_dist", "megatron_zarr"}) {
    CAPTURE(format);
    const test::TempDir dir;
    Saver saver(1, {.format = format}, dir.file("out"), {.sync = false});
    RankState state;
    state.objects.push_back({.key = "o", .json = "1"});
    state.common = R"({"o": 2})";
    CHECK_THROWS_WITH_AS(saver.save(0, state),
                         doctest::Contains("would have this name"), Error);
  }
}

TEST_CASE("sharded: the common part and the objects of a golden") {
  std::ifstream file(kCase + "/expected_objects.json");
  const auto expected = nlohmann::json::parse(file);
  const auto common = load_common(kCase + "/ckpt");
  CHECK(common.size() == expected["common"]["$dict"].size());
  for (const auto& pair : expected["common"]["$dict"])
    CHECK(common.contains(pair[0].get<std::string>()));
  CHECK(common.at("iteration") == "7");

  const ShardedMetadata metadata = load_sharded_metadata(kCase + "/ckpt");
  for (const auto& [name, value] : expected["objects"].items())
    CHECK(metadata.objects.contains(name));
  CHECK(metadata.objects.size() == expected["objects"].size());
  const auto& state = metadata.objects.at(
      "decoder.layers.mlp.linear_fc1._extra_state/shard_1_2");
  CHECK(state.key == "decoder.layers.mlp.linear_fc1._extra_state");
  CHECK(state.at == Dims{1});
  CHECK(state.grid == Dims{2});
}

// other/removed_optimizer is what megatron-core 0.16 left of the same
// checkpoint.
TEST_CASE("sharded: remove_sharded_tensors as the peer does it") {
  const std::string peer = kCase + "/other/removed_optimizer";
  const test::TempDir dir;
  const std::string mine = dir.file("ckpt");
  copy_to(kCase + "/ckpt", mine);
  const auto before = load_plain_tensors(mine);

  const RemovedTensors would = remove_sharded_tensors(mine, "optimizer", true);
  CHECK(names_in(mine) == names_in(kCase + "/ckpt"));
  const RemovedTensors removed = remove_sharded_tensors(mine, "optimizer");
  CHECK(removed.files == std::vector<std::string>{"optimizer__0_1.distcp",
                                                  "optimizer__1_0.distcp"});
  CHECK(would.files == removed.files);
  CHECK(removed.freed > 0);
  CHECK(removed.kept == 0);
  CHECK(names_in(mine) == names_in(peer));
  CHECK(names_of(load_sharded_metadata(mine)) ==
        names_of(load_sharded_metadata(peer)));
  const auto after = load_plain_tensors(mine, true);
  CHECK(after.size() == before.size());
  for (const auto& [name, tensor] : after)
    CHECK(tensor.bytes == before.at(name).bytes);
  CHECK(validate_sharding_integrity(open(mine).catalog(), true).empty());
}

TEST_CASE("sharded: remove_sharded_tensors refuses, and keeps what is shared") {
  const test::TempDir dir;
  const std::string mine = dir.file("ckpt");
  copy_to(kCase + "/ckpt", mine);
  CHECK_THROWS_WITH_AS(remove_sharded_tensors(mine, "nothing"),
                       doctest::Contains("no name begins with 'nothing'"),
                       Error);
  CHECK_THROWS_WITH_AS(remove_sharded_tensors(mine, ""),
                       doctest::Contains("every name begins with"), Error);
  CHECK_THROWS_AS(remove_sharded_tensors(dir.path, "x"), Error);
  const RemovedTensors removed = remove_sharded_tensors(mine, "decoder.final");
  CHECK(removed.tensors ==
        std::vector<std::string>{"decoder.final_layernorm.weight",
                                 "decoder.final_layernorm.bias"});
  CHECK(removed.files.empty());
  CHECK(removed.kept > 0);
  CHECK(names_in(mine) == names_in(kCase + "/ckpt"));
}

// The peer's hashes of the files that stay, and a hash of the new index.
TEST_CASE("sharded: integrity.json follows what is removed") {
  const test::TempDir dir;
  const std::string mine = dir.file("ckpt");
  copy_to(kMegatron + "gpt_common_state_tp2_v0190/ckpt", mine);
  const auto check = [&] {
    return megatron::check_integrity_file(mine, {}).problems.size();
  };
  REQUIRE(check() == 0);
  CHECK(remove_sharded_tensors(mine, "decoder.final").files.empty());
  CHECK(check() == 0);
  dir.write("ckpt/.metadata", "x");
  CHECK(check() == 1);
}

TEST_CASE("sharded: strictness") {
  const std::string path = kMegatron + "gpt_tp2_pp2_v0161/ckpt";
  const std::string known = "decoder.final_layernorm.weight";
  const std::vector<LoadRequest> requests{{.name = known}, {.name = "other"}};
  struct Row {
    const char* word;
    bool throws;
    size_t lines, unexpected;
    bool missing;
  };
  const Row rows[] = {
      {"assume_ok_unexpected", true, 0, 0, false},
      {"log_unexpected", false, 1, 0, false},
      {"log_all", false, 1, 0, false},
      {"raise_unexpected", true, 0, 0, false},
      {"raise_all", true, 0, 0, false},
      {"return_unexpected", false, 0, 1, false},
      {"return_all", false, 0, 1, true},
      {"ignore_all", false, 0, 0, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.word);
    // As in the peer: missing names are reported with *_ALL only, in one
    // message.
    constexpr char kMissing[] = " in the checkpoint and not requested: ";
    const bool all = std::string_view(row.word).ends_with("_all");
    size_t lines = 0;
    const LoadOptions options{
        .open = {},
        .strict = parse_strict(row.word),
        .log = [&](const std::string& line) {
          ++lines;
          CHECK((line.find(kMissing) != line.npos) == all);
        }};
    if (row.throws) {
      CHECK_THROWS_WITH_AS(load_shards(path, requests, options),
                           doctest::Contains("1 requested and not in the "
                                             "checkpoint: other"),
                           Error);
      if (all)
        CHECK_THROWS_WITH_AS(load_shards(path, requests, options),
                             doctest::Contains(kMissing), Error);
      continue;
    }
    const LoadResult result = load_shards(path, requests, options);
    CHECK(lines == row.lines);
    REQUIRE(result.tensors.size() == 2);
    CHECK(result.tensors[0]->shape == Shape{8});
    CHECK_FALSE(result.tensors[1]);
    CHECK(result.unexpected.size() == row.unexpected);
    CHECK(result.missing.empty() == !row.missing);
  }
  CHECK_THROWS_WITH_AS(parse_strict("raise_al"),
                       doctest::Contains("no such strictness"), Error);
}

TEST_CASE("sharded: boxes, and shapes that may differ") {
  const std::string path = kMegatron + "gpt_tp2_pp2_v0161/ckpt";
  const std::string name = "output_layer.weight";  // [24, 8]
  const TensorData whole = open(path).read(name);
  const auto load = [&](LoadRequest request) {
    return *load_shards(path, std::span(&request, 1)).tensors[0];
  };
  const TensorData part = load({.name = name, .box = Box{{10, 2}, {4, 3}}});
  CHECK(part.bytes == open(path).read(name, {{10, 2}, {4, 3}}).bytes);
  CHECK_THROWS_WITH_AS(load({.name = name, .shape = Shape{32, 8}}),
                       doctest::Contains("has the global shape [24, 8]"),
                       Error);
  // A larger vocabulary's extra rows are zero; a smaller one drops rows.
  const TensorData more =
      load({.name = name, .shape = Shape{32, 8}, .allow_shape_mismatch = true});
  std::vector<std::byte> padded = whole.bytes;
  padded.resize(32 * 8 * 2);
  CHECK(more.bytes == padded);
  const TensorData tail = load({.name = name,
                                .box = Box{{20, 4}, {8, 4}},
                                .shape = Shape{32, 8},
                                .allow_shape_mismatch = true});
  for (uint64_t r = 0; r < 8; ++r)
    CHECK(std::equal(
        tail.bytes.begin() + static_cast<std::ptrdiff_t>(8 * r),
        tail.bytes.begin() + static_cast<std::ptrdiff_t>(8 * r + 8),
        padded.begin() + static_cast<std::ptrdiff_t>((20 + r) * 16 + 8)));
  const TensorData fewer =
      load({.name = name, .shape = Shape{16, 8}, .allow_shape_mismatch = true});
  CHECK(fewer.bytes ==
        std::vector<std::byte>(whole.bytes.begin(), whole.bytes.begin() + 256));
}

namespace {

// Four ranks: a [8, 6] matrix as 2 x 2 boxes, a vector that every rank holds,
// and one object per rank.
struct Ranks {
  std::vector<std::byte> matrix, vector;
  std::vector<std::vector<std::byte>> boxes;
  std::vector<RankState> states;

  Ranks() {
    for (int i = 0; i < 48; ++i) matrix.push_back(std::byte(i));
    for (int i = 0; i < 5; ++i) vector.push_back(std::byte(100 + i));
    boxes.resize(4);
    for (uint64_t rank = 0; rank < 4; ++rank) {
      const uint64_t row = rank / 2 * 4, column = rank % 2 * 3;
      for (uint64_t r = row; r < row + 4; ++r)
        for (uint64_t c = column; c < column + 3; ++c)
          boxes[rank].push_back(matrix[r * 6 + c]);
      RankState state;
      state.tensors.push_back({.name = "decoder.layers.0.w",
                               .dtype = DType::u8,
                               .shape = Shape{8, 6},
                               .box = {{row, column}, {4, 3}},
                               .bytes = boxes[rank]});
      state.tensors.push_back({.name = "decoder.layers.0.v",
                               .dtype = DType::u8,
                               .shape = Shape{5},
                               .box = {{0}, {5}},
                               .bytes = vector,
                               .replica = {(rank + 1) % 4}});
      state.objects.push_back({.key = "rng_state",
                               .json = std::to_string(rank),
                               .at = {rank},
                               .grid = {4}});
      if (rank == 0) state.common = R"({"iteration": 7})";
      states.push_back(std::move(state));
    }
  }
};

void save_from_threads(Saver& saver, const std::vector<RankState>& states,
                       size_t& failed) {
  std::atomic<size_t> errors = 0;
  std::vector<std::jthread> threads;
  for (uint32_t rank = 0; rank < states.size(); ++rank)
    threads.emplace_back([&, rank] {
      try {
        saver.save(rank, states[rank]);
      } catch (const Error&) {
        ++errors;
      }
    });
  threads.clear();
  failed = errors;
}

}  // namespace

TEST_CASE("Saver: ranks become one checkpoint") {
  for (const char* format : {"dcp", "megatron_torch_dist"}) {
    CAPTURE(format);
    const test::TempDir dir;
    const Ranks ranks;
    Saver saver(4, {.format = format}, dir.file("out"), {.sync = false});
    size_t failed = 0;
    save_from_threads(saver, ranks.states, failed);
    REQUIRE(failed == 0);
    const Checkpoint back = open(dir.file("out"));
    CHECK(back.catalog().format == format);
    CHECK(back.read("decoder.layers.0.w").bytes == ranks.matrix);
    CHECK(back.read("decoder.layers.0.v").bytes == ranks.vector);
    CHECK(load_common(dir.file("out")).at("iteration") == "7");
    const bool grids = back.catalog().format != "dcp";
    CHECK(load_sharded_metadata(dir.file("out"))
              .objects.contains("rng_state/shard_2_4") == grids);
    if (!grids) CHECK(load_common(dir.file("out")).at("rng_state.2") == "2");
    CHECK(validate_sharding_integrity(back.catalog(), true).empty());
  }
}

TEST_CASE("Saver: what ranks don't agree on fails for all of them") {
  struct Row {
    const char* why;
    std::function<void(Ranks&)> spoil;
  };
  const Row rows[] = {
      {"2 main replicas",
       [](Ranks& r) { r.states[0].tensors[1].replica = {0}; }},
      {"0 main replicas",
       [](Ranks& r) { r.states[3].tensors[1].replica = {9}; }},
      {"no piece of the source holds 12 of",
       [](Ranks& r) {
         r.states[2].tensors.erase(r.states[2].tensors.begin());
       }},
      {"stored in two pieces",
       [](Ranks& r) {
         r.states[2].tensors[0].box.offset = Dims{3, 0};
       }},
      {"one shard says",
       [](Ranks& r) { r.states[2].tensors[0].dtype = DType::i8; }},
      {"3 of the 4 objects", [](Ranks& r) { r.states[1].objects.clear(); }},
      {"there is no entry [4] in a grid of [4]",
       [](Ranks& r) { r.states[1].objects[0].at = Dims{4}; }},
      {"its value is not JSON",
       [](Ranks& r) { r.states[1].objects[0].json = "{"; }},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const test::TempDir dir;
    Ranks ranks;
    row.spoil(ranks);
    Saver saver(4, {.format = "dcp"}, dir.file("out"), {.sync = false});
    size_t failed = 0;
    save_from_threads(saver, ranks.states, failed);
    CHECK(failed == 4);
    CHECK_FALSE(fs::exists(dir.file("out")));
    // The error that one of them got.
    Saver again(4, {.format = "dcp"}, dir.file("out"), {.sync = false});
    std::shared_future<Preview> result;
    for (uint32_t rank = 0; rank < 4; ++rank)
      result = again.save_async(rank, ranks.states[rank]);
    CHECK_THROWS_WITH_AS(result.get(), doctest::Contains(row.why), Error);
  }
}

// One value of a rank and one that all share, beside a tensor that any dialect
// may hold.
TEST_CASE("Saver: a format keeps a value, or whoever saves is told") {
  for (const formats::Format& format : formats::all_formats()) {
    // Those that other tests register can't be read.
    if (!format.writer || format.name.starts_with("fake")) continue;
    CAPTURE(format.name);
    const test::TempDir dir;
    const std::vector<std::byte> bytes(64, std::byte(1));
    RankState state;
    state.tensors.push_back({.name = "model.norm.weight",
                             .dtype = DType::bf16,
                             .shape = Shape{32},
                             .box = {{0}, {32}},
                             .bytes = bytes});
    state.objects.push_back({.key = "of_rank", .json = "[1, 2]"});
    state.common = R"({"of_all": 7})";
    std::string notes;
    const auto save = [&](const std::string& to, bool listen) -> std::string {
      SaveOptions options{.sync = false};
      if (listen)
        options.note = [&](const std::string& line) { notes += line + "\n"; };
      try {
        Saver(1, {.format = std::string(format.name)}, to, options)
            .save(0, state);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    const std::string silent = save(dir.file("silent"), false);
    const std::string told = save(dir.file("told"), true);
    if (!told.empty()) continue;  // not for what was kept or left out
    const auto kept = load_common(dir.file("told"));
    for (const char* name : {"of_rank", "of_all"}) {
      CAPTURE(name);
      CHECK(kept.contains(name) != (notes.find(name) != std::string::npos));
    }
    CHECK(silent.empty() == notes.empty());
    CHECK(fs::exists(dir.file("silent")) == notes.empty());
  }
}

// What belongs to a rank of the job is left out where a checkpoint gets other
// ranks; those of a save are the job's own.
TEST_CASE(
    "Saver: the objects of ranks are kept, however many files there are") {
  const test::TempDir dir;
  Ranks ranks;
  for (uint32_t rank = 0; rank < 4; ++rank)
    ranks.states[rank].objects.push_back({.key = "rerun_state_machine_state",
                                          .json = std::to_string(rank),
                                          .at = {rank},
                                          .grid = {4}});
  Saver saver(4, {.format = "megatron_torch_dist", .topology = {.dp = 4}},
              dir.file("out"), {.sync = false});
  size_t failed = 0;
  save_from_threads(saver, ranks.states, failed);
  CHECK(failed == 0);
  const auto objects = load_sharded_metadata(dir.file("out")).objects;
  CHECK(objects.contains("rerun_state_machine_state/shard_3_4"));
  CHECK(objects.contains("rng_state/shard_3_4"));
}

TEST_CASE("Saver: replicas that differ are told apart") {
  const test::TempDir dir;
  Ranks ranks;
  std::vector<std::byte> other = ranks.vector;
  other[4] = std::byte(0);
  ranks.states[1].tensors[1].bytes = other;  // rank 3 has the main replica
  Saver saver(4, {.format = "dcp"}, dir.file("out"), {.sync = false});
  size_t failed = 0;
  save_from_threads(saver, ranks.states, failed);
  CHECK(failed == 4);
}

TEST_CASE("Saver: ranks come once") {
  const test::TempDir dir;
  Saver saver(2, {.format = "dcp"}, dir.file("out"));
  saver.save_async(1, {});
  CHECK_THROWS_WITH_AS(saver.save_async(1, {}),
                       doctest::Contains("rank 1 came a second time"), Error);
  CHECK_THROWS_WITH_AS(saver.save_async(2, {}),
                       doctest::Contains("rank 2 of 2"), Error);
}

TEST_CASE("Saver: whoever waits for ranks that don't come is told") {
  const test::TempDir dir;
  std::shared_future<Preview> future;
  {
    Saver saver(3, {.format = "dcp"}, dir.file("out"));
    future = saver.save_async(1, {});
  }
  CHECK_THROWS_WITH_AS(future.get(), doctest::Contains("2 of 3 ranks"), Error);
}

TEST_CASE("integrity: what is missing is named") {
  const test::TempDir dir;
  const std::string mine = dir.file("ckpt");
  copy_to(kMegatron + "gpt_tp2_pp2_v0161/ckpt/iter_0000007", mine);
  Catalog catalog = open(mine).catalog();
  CHECK(validate_sharding_integrity(catalog).empty());
  const auto kinds = [](const Catalog& broken) {
    std::string words;
    for (const Problem& problem : validate_sharding_integrity(broken))
      words += problem.kind + " ";
    return words;
  };
  Catalog hole = catalog;
  hole.tensors[0].pieces.pop_back();
  CHECK(kinds(hole) == "incomplete ");
  Catalog grid = catalog;
  std::erase_if(grid.objects, [](const Object& object) {
    return object.name == "rng_state/shard_0.1_2.2";
  });
  CHECK(kinds(grid) == "object_grid ");
  // The file is one byte shorter than the index says.
  const std::string file = catalog.files[0].path;
  fs::resize_file(file, fs::file_size(file) - 1);
  CHECK(kinds(catalog).starts_with("extent "));
}

TEST_CASE("replace_prefix: every name must have it") {
  Catalog catalog = open(kMegatron + "gpt_tp2_pp2_v0161/ckpt").catalog();
  CHECK_THROWS_WITH_AS(replace_prefix(catalog, "decoder.", "x."),
                       doctest::Contains("does not begin with 'decoder.'"),
                       Error);
  replace_prefix(catalog, "", "model.");
  CHECK(catalog.find("model.decoder.final_layernorm.weight") != nullptr);
  replace_prefix(catalog, "model.", "");
  CHECK(catalog.find("decoder.final_layernorm.weight") != nullptr);
}

}  // namespace ckpt
