// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/zarr.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/megatron/dist/zarr_chunks.h"
#include "formats/megatron/dist/zarr_scan.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt::megatron {
namespace {

namespace fs = std::filesystem;
using test::data;
using test::TempDir;

constexpr char kGpt[] = "megatron_zarr/gpt_zarr_tp2_pp2_v0090/ckpt";
constexpr char kModelSpace[] = "megatron_zarr/gpt_zarr_optim_model_space_v0090";
constexpr char kQkv[] = "decoder.layers.self_attention.linear_qkv.weight";

Catalog read(const std::string& path) {
  return formats::open(path, "megatron_zarr", {});
}

const Problem* find_problem(const Catalog& catalog, std::string_view kind) {
  for (const Problem& problem : catalog.problems)
    if (problem.kind == kind) return &problem;
  return nullptr;
}

// A copy of the iteration of kGpt.
struct Copy {
  Copy() : path(dir.file("ckpt")) {
    fs::copy(data(kGpt) + std::string("/iter_0000007"), path,
             fs::copy_options::recursive);
    fs::permissions(path, fs::perms::owner_all, fs::perm_options::add);
    for (const auto& entry : fs::recursive_directory_iterator(path))
      fs::permissions(entry, fs::perms::owner_all, fs::perm_options::add);
  }
  std::string file(const std::string& name) const { return path + "/" + name; }
  void write(const std::string& name, std::string_view content) const {
    dir.write("ckpt/" + name, content);
  }
  TempDir dir;
  std::string path;
};

}  // namespace

TEST_CASE("megatron_zarr: is found by its content") {
  CHECK(formats::detect(data(kGpt)).format->name == "megatron_zarr");
  const Catalog catalog = read(data(kGpt));
  CHECK(catalog.root == data(kGpt));
  CHECK(catalog.path.ends_with("iter_0000007"));
  CHECK(catalog.version == "1");
  CHECK(catalog.dialect == "mcore");
  CHECK(catalog.topology == Topology{.tp = 2, .pp = 2});
  CHECK(catalog.problems.empty());
  CHECK(catalog.tensors.size() == 12);
}

TEST_CASE("megatron_zarr: locks of flattened writes are not arrays") {
  const Catalog catalog = read(data(kModelSpace) + std::string("/ckpt"));
  CHECK(catalog.tensors.size() == 44);
  for (const Tensor& tensor : catalog.tensors)
    CHECK(!tensor.name.ends_with(".sync"));
  CHECK(std::ranges::any_of(catalog.assumptions, [](const std::string& line) {
    return line.find("directories of locks (.sync)") != std::string::npos;
  }));
  // A key that really ends in .sync has a description.
  Copy copy;
  fs::copy(copy.file(kQkv), copy.file(kQkv + std::string(".sync")));
  CHECK(read(copy.path).find(kQkv + std::string(".sync")) != nullptr);
}

TEST_CASE("megatron_zarr: what is damaged is told, with its name") {
  struct Row {
    std::function<void(const Copy&)> wound;
    ExitCode code;
    const char* why;
  };
  const std::string array = std::string(kQkv) + "/";
  const Row rows[] = {
      {[](const Copy& c) { fs::remove(c.file("metadata.json")); },
       ExitCode::kDamaged, "has no metadata.json: incomplete save"},
      {[](const Copy& c) { fs::remove(c.file("common.pt")); },
       ExitCode::kMissing, "common.pt"},
      {[](const Copy& c) { c.write("common.pt", "x"); }, ExitCode::kDamaged,
       "common.pt"},
      {[&](const Copy& c) { fs::remove(c.file(array + ".zarray")); },
       ExitCode::kDamaged, "is missing, but chunks of the array are there"},
      {[&](const Copy& c) { c.write(array + ".zarray", ""); },
       ExitCode::kDamaged, "is empty (0 bytes)"},
      {[&](const Copy& c) { fs::remove(c.file(array + "1.0.0")); },
       ExitCode::kDamaged, "chunk 1.0.0 is missing (3 of 4 chunks"},
      {[&](const Copy& c) { c.write(array + "1.0.0", "short"); },
       ExitCode::kDamaged, "chunk of 5 bytes, bf16 [1, 12, 8] needs 192"},
      {[](const Copy& c) { c.write("rng_state/shard_0.0_2.2.pt", ""); },
       ExitCode::kDamaged,
       "rng_state/shard_0.0_2.2: the object's file is empty"},
      {[](const Copy& c) {
         fs::rename(c.file("rng_state/shard_0.0_2.2.pt"),
                    c.file("rng_state/shard_0.0_2.3.pt"));
       },
       ExitCode::kDamaged, "is of a grid of"},
      {[](const Copy& c) {
         c.write(
             "metadata.json",
             R"({"sharded_backend": "zarr", "sharded_backend_version": 2})");
       },
       ExitCode::kDamaged, "version 2"},
      {[](const Copy& c) {
         c.write("metadata.json", R"({"sharded_backend": "torch_dist"})");
       },
       ExitCode::kUsage, "torch_dist"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const Copy copy;
    row.wound(copy);
    try {
      read(copy.path);
      FAIL("it was read");
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(error.code() == row.code);
      CHECK(message.find(row.why) != std::string::npos);
    }
  }
}

TEST_CASE("megatron_zarr: what is odd is told, and read") {
  const Copy copy;
  fs::remove(copy.file("rng_state/shard_1.1_2.2.pt"));
  fs::create_directory(copy.file("tokenizer"));
  copy.write("rng_state/notes.txt", "hello");
  const Catalog catalog = read(copy.path);
  CHECK(catalog.tensors.size() == 12);
  const Problem* grid = find_problem(catalog, "object_grid");
  REQUIRE(grid);
  CHECK(grid->severity == Problem::Severity::kDamage);
  CHECK(grid->message == "3 of the 4 objects of a grid of [2, 2] are there");
  CHECK(find_problem(catalog, "foreign_file"));
  CHECK(find_problem(catalog, "foreign_directory"));
}

TEST_CASE("megatron_zarr: names of objects, whole and cut") {
  struct Row {
    const char* stem;
    const char* want;  // "": no name
  };
  const Row rows[] = {
      {"shard_0_1", "0 1"},
      {"shard_0.1_2.2", "0.1 2.2"},
      {"shard_0.1_2", "0.1 2 cut"},
      {"shard_1.0.7_2.1", "1.0.7 2.1 cut"},
      {"shard_2_2", ""},
      {"shard_2.0_2", ""},
      {"shard_0.1.2_2", ""},
      {"shard_0_1.1", ""},
      {"shard__1", ""},
      {"shard_0", ""},
      {"shard_0_", ""},
      {"shard_a_1", ""},
      {"shard_-1_1", ""},
      {"shard_0_1_1", ""},
      {"0_1", ""},
      {"shard_0_99999999999999999999", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.stem);
    std::string found;
    if (const auto name = parse_shard_name(row.stem))
      found = fmt::format("{} {}{}", fmt::join(name->offset, "."),
                          fmt::join(name->grid, "."), name->cut ? " cut" : "");
    CHECK(found == row.want);
  }
  std::vector<Object> objects;
  for (const char* name : {"a/shard_0.2_2", "a/shard_1.1_2", "b/shard_0_1",
                           "c/shard_0.0_1.1", "iteration"})
    objects.push_back({.name = name});
  complete_object_names(objects);
  CHECK(objects[0].name == "a/shard_0.2_2.3");
  CHECK(objects[1].name == "a/shard_1.1_2.3");
  CHECK(objects[2].name == "b/shard_0_1");
  CHECK(objects[3].name == "c/shard_0.0_1.1");
  CHECK(objects[4].name == "iteration");
}

TEST_CASE("megatron_zarr: chunks are what one rank writes") {
  const auto tensor = [](const char* name, Shape shape, TpRule tp) {
    Tensor made;
    made.name = name;
    made.shape = std::move(shape);
    made.tp = tp;
    return made;
  };
  const DistSplit split{.tp = 4, .etp = 2, .ep = 2};
  struct Row {
    Tensor tensor;
    Dims want;
  };
  const Row rows[] = {
      {tensor(kQkv, {3, 24, 8}, TpRule::split(1)), {1, 6, 8}},
      {tensor("decoder.layers.mlp.linear_fc1.weight", {3, 48, 8},
              TpRule::split(1, 2)),
       {1, 6, 8}},
      {tensor("decoder.layers.mlp.experts.experts.linear_fc2.weight",
              {3, 4, 8, 24}, TpRule::split(3)),
       {1, 1, 8, 12}},
      {tensor("decoder.final_layernorm.weight", {8}, TpRule::replicated()),
       {8}},
      {tensor("mine", {8, 4}, {}), {8, 4}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.tensor.name);
    CHECK(zarr_chunks(row.tensor, parse_key(row.tensor.name), split) ==
          row.want);
  }
  // The source's boxes are kept if nothing better is known and they form a
  // grid.
  Tensor mine = tensor("mine", {4, 4}, {});
  for (const uint64_t row : {0, 2})
    mine.pieces.push_back({.box = {{row, 0}, {2, 4}}});
  CHECK(zarr_chunks(mine, parse_key(mine.name), split) == Dims{2, 4});
  mine.pieces[1].box.shape[0] = 1;
  CHECK(zarr_chunks(mine, parse_key(mine.name), split) == Dims{4, 4});
}

// The peer wrote the same tensors for other topologies as well.
TEST_CASE("megatron_zarr: writes the files that Megatron-Core wrote") {
  const formats::Format& format = formats::find_format("megatron_zarr");
  struct Row {
    const char* from;
    const char* wanted;
    Topology topology;
  };
  const std::string gpt = "megatron_zarr/gpt_zarr_tp2_pp2_v0090/";
  const std::string iteration = gpt + "ckpt/iter_0000007";
  const std::string tp1 = gpt + "other/tp1_pp1_dp1";
  const std::string tp4 = gpt + "other/tp4_pp1_dp1";
  const std::string flat = kModelSpace + std::string("/ckpt");
  const std::string flat1 = kModelSpace + std::string("/other/tp1_pp1_dp1");
  const Row rows[] = {
      {iteration.c_str(), tp1.c_str(), {.tp = 1}},
      {iteration.c_str(), tp4.c_str(), {.tp = 4}},
      {tp1.c_str(), tp4.c_str(), {.tp = 4}},
      {tp4.c_str(), tp1.c_str(), {.tp = 1}},
      {flat.c_str(), flat1.c_str(), {.tp = 1}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.wanted);
    const Layout layout{.format = "megatron_zarr", .topology = row.topology};
    Catalog source = format.writer->review(read(data(row.from)), layout);
    const Target target = format.writer->lay_out(source, layout);
    const TempDir dir;
    test::materialise(source, target, dir.path);
    size_t arrays = 0;
    for (const auto& entry :
         fs::recursive_directory_iterator(data(row.wanted))) {
      const fs::path name = fs::relative(entry, data(row.wanted));
      const std::string key = name.parent_path().string();
      // Except the args, the locks, and the random state of other ranks.
      if (entry.is_directory() || name == "common.pt" ||
          key.ends_with(".sync") || key == "rng_state")
        continue;
      CAPTURE(name.string());
      arrays += name.filename() == ".zarray";
      CHECK(test::read_all((dir.path / name).string()) ==
            test::read_all(entry.path().string()));
    }
    CHECK(arrays == source.tensors.size());
  }
}

}  // namespace ckpt::megatron
