// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <stdexcept>

#include "ckpt/check.h"
#include "ckpt/ckpt.h"
#include "ckpt/format.h"
#include "ckpt/parallel.h"
#include "ckpt/sharded.h"
#include "tests/support/temp_file.h"
#include "tests/support/tensor_data.h"

namespace ckpt {
namespace {

using test::range;
using test::tensor;
using test::values;

const std::string kCase =
    std::string(CKPT_TEST_DATA) + "/fairseq2_native/llama_tp2dp2_fsdp2";

}  // namespace

TEST_CASE("read: boxes, and names that are not there") {
  const Checkpoint source = open(kCase + "/ckpt");
  const TensorData whole = source.read("final_proj.weight");
  const TensorData part = source.read("final_proj.weight", {{3, 4}, {2, 5}});
  CHECK(part.shape == Shape{2, 5});
  const uint64_t row = whole.shape[1] * 2;
  for (uint64_t r = 0; r < 2; ++r)
    CHECK(std::equal(
        part.bytes.begin() + static_cast<std::ptrdiff_t>(r * 10),
        part.bytes.begin() + static_cast<std::ptrdiff_t>(r * 10 + 10),
        whole.bytes.begin() + static_cast<std::ptrdiff_t>((r + 3) * row + 8)));
  CHECK_THROWS_WITH_AS(source.read("final_proj.wieght"),
                       doctest::Contains("there is no such tensor"), Error);
  CHECK_THROWS_AS(source.read("final_proj.weight", {{0, 0}, {99, 99}}), Error);
}

TEST_CASE("save: shards of many ranks become one checkpoint") {
  const test::TempDir dir;
  const std::vector<TensorData> ranks{tensor({2, 3}, range(0, 6)),
                                      tensor({2, 3}, range(6, 12))};
  std::vector<ShardedTensor> shards;
  for (uint64_t r = 0; r < 2; ++r)
    shards.push_back({.name = "w",
                      .dtype = DType::u8,
                      .shape = Shape{4, 3},
                      .box = {{2 * r, 0}, {2, 3}},
                      .bytes = ranks[r].bytes,
                      .tp = TpRule::split(0)});
  const Layout layout{.format = "safetensors", .single_file = true};
  save_async(shards, layout, dir.file("m.safetensors")).get();
  CHECK(values(open(dir.file("m.safetensors")).read("w")) == range(0, 12));
  shards.pop_back();
  CHECK_THROWS_AS(save(shards, layout, dir.file("half.safetensors")), Error);
}

TEST_CASE("plan: says what run would write") {
  const test::TempDir dir;
  const Checkpoint source = open(kCase + "/ckpt");
  const Layout layout{.format = "safetensors", .single_file = true};
  const std::string path = dir.file("m.safetensors");
  const Preview preview = plan(source.catalog(), layout, path);
  CHECK(!std::filesystem::exists(path));
  run(source.catalog(), layout, path);
  CHECK(std::filesystem::file_size(path) == preview.bytes_written);
}

// Checks names, shapes and bytes against `expected`, an HF checkpoint.
void check_same_model(const std::string& path, const Checkpoint& expected) {
  const Checkpoint back = open(path);
  CHECK(back.catalog().tensors.size() == expected.catalog().tensors.size());
  for (const Tensor& tensor : expected.catalog().tensors) {
    INFO(tensor.name);
    REQUIRE(back.catalog().find(tensor.name));
    CHECK(back.read(tensor.name).shape == tensor.shape);
    CHECK(back.read(tensor.name).bytes == expected.read(tensor.name).bytes);
  }
}

TEST_CASE("run: a source of another dialect is converted, there and back") {
  const test::TempDir dir;
  for (const std::string model : {"qwen3_bf16", "qwen3_moe_bf16"}) {
    const std::string folder = CKPT_TEST_DATA "/hf/" + model;
    const Checkpoint source = open(folder + "/ckpt");
    for (const std::string format :
         {"megatron_torch_dist", "megatron_legacy"}) {
      INFO(model, " ", format);
      const Layout there{.format = format, .topology = {.tp = 2}};
      const std::string path = dir.file(model + format);
      const Preview preview = run(source.catalog(), there, path);
      CHECK(plan(source.catalog(), there, path + "2").bytes_written ==
            preview.bytes_written);
      const Checkpoint written = open(path);
      CHECK(written.catalog().topology.tp == 2);
      if (format == "megatron_torch_dist")
        CHECK(written.catalog().find("decoder.final_layernorm.weight"));
      run(written.catalog(), {.format = "safetensors"}, path + "_hf",
          {.naming = {.dialect = "hf"}});
      check_same_model(path + "_hf", source);
    }
  }
}

TEST_CASE("run: names are kept where that is asked, and what lacks is said") {
  const test::TempDir dir;
  const std::string model = CKPT_TEST_DATA "/hf/qwen3_bf16/ckpt";
  const Checkpoint source = open(model);
  run(source.catalog(), {.format = "dcp"}, dir.file("kept"),
      {.naming = {.dialect = "keep"}});
  check_same_model(dir.file("kept"), source);
  // The tensors alone, with nothing to say what they mean.
  std::filesystem::copy_file(model + "/model.safetensors",
                             dir.file("bare.safetensors"));
  const Checkpoint bare = open(dir.file("bare.safetensors"));
  const Layout megatron{.format = "megatron_torch_dist"};
  CHECK_THROWS_AS(run(bare.catalog(), megatron, dir.file("none")), Error);
  CHECK_FALSE(std::filesystem::exists(dir.file("none")));
  std::vector<std::string> said;
  Naming naming{.config_from = model};
  naming.note = [&](const std::vector<Problem>& problems) {
    for (const Problem& problem : problems) said.push_back(problem.message);
  };
  run(bare.catalog(), megatron, dir.file("lent"), {.naming = naming});
  CHECK(std::filesystem::exists(dir.file("lent")));
  CHECK_FALSE(said.empty());
}

TEST_CASE("load: metadata and plain tensors of a sharded checkpoint") {
  const auto metadata = load_tensors_metadata(kCase + "/ckpt");
  const auto tensors = load_plain_tensors(kCase + "/ckpt");
  const Checkpoint expected = open(kCase + "/expected.safetensors");
  CHECK(tensors.size() == expected.catalog().tensors.size());
  for (const auto& [name, data] : tensors) {
    CHECK(data.bytes == expected.read(name).bytes);
    CHECK(metadata.at(name).shape == data.shape);
  }
  CHECK(load_plain_tensors(kCase + "/ckpt", true).size() == metadata.size());
}

TEST_CASE("validate_sharding_integrity: holes and unlike replicas") {
  CHECK(validate_sharding_integrity(open(kCase + "/ckpt").catalog(), true)
            .empty());
  Catalog catalog = open(kCase + "/ckpt").catalog();
  catalog.tensors[0].pieces.pop_back();
  catalog.tensors[5].pieces.pop_back();
  const auto problems = validate_sharding_integrity(catalog);
  CHECK(problems.size() == 2);
  CHECK(problems[0].tensor == catalog.tensors[0].name);
}

TEST_CASE("apply_prefix_mapping: the first prefix, and no two of a name") {
  Catalog catalog = open(kCase + "/ckpt").catalog();
  apply_prefix_mapping(
      catalog, {{"decoder.layers.", "blocks."}, {"decoder.", "model."}});
  CHECK(catalog.find("model.layer_norm.weight"));
  CHECK(catalog.find("blocks.0.ffn.gate_proj.weight"));
  const Tensor* state = catalog.find("blocks.0.ffn.gate_proj.weight.exp_avg");
  REQUIRE(state);
  CHECK(state->param == "blocks.0.ffn.gate_proj.weight");
  Catalog other = open(kCase + "/ckpt").catalog();
  apply_prefix_mapping(
      other, {{"decoder.", "model."}, {"decoder.layers.", "blocks."}});
  CHECK(other.find("model.layers.0.ffn.gate_proj.weight"));
  CHECK_THROWS_WITH_AS(
      apply_prefix_mapping(catalog, {{"blocks.0.", "blocks.1."}}),
      doctest::Contains("would be called blocks.1."), Error);
}

TEST_CASE("merge and diff: two catalogs") {
  const Catalog a =
      open(std::string(CKPT_TEST_DATA) +
           "/safetensors/hf_sharded/other/single_file/model.safetensors")
          .catalog();
  const Catalog b = open(kCase + "/expected.safetensors").catalog();
  const Catalog both = merge(a, b);
  CHECK(both.tensors.size() == a.tensors.size() + b.tensors.size());
  CHECK(Checkpoint(both).read(b.tensors.back().name).bytes ==
        Checkpoint(b).read(b.tensors.back().name).bytes);
  CHECK_THROWS_WITH_AS(merge(b, b), doctest::Contains("has it too"), Error);
  CHECK(diff_objects(a, a).empty());
}

TEST_CASE("save and run: a target of no ranks, path or tensors") {
  const test::TempDir dir;
  const Catalog source = open(kCase + "/expected.safetensors").catalog();
  const auto status = [&](const Layout& layout, const std::string& path) {
    try {
      run(source, layout, path);
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode{};
  };
  for (const Topology& none : {Topology{.tp = 0}, Topology{.pp = 0},
                               Topology{.dp = 0}, Topology{.ep = 0}})
    CHECK(status({.format = "dcp", .topology = none}, dir.file("a")) ==
          ExitCode::kUsage);
  CHECK(status({.format = "dcp"}, "") == ExitCode::kUsage);
  CHECK_THROWS_WITH_AS(save({}, {.format = "dcp"}, dir.file("b")),
                       doctest::Contains("no tensors to save"), Error);
  CHECK(!std::filesystem::exists(dir.file("a")));
  CHECK(!std::filesystem::exists(dir.file("b")));
}

TEST_CASE("save: what no tensor can be is wrong usage, whoever saves") {
  const test::TempDir dir;
  const std::vector<std::byte> bytes(64);
  struct Row {
    Shape shape;
    Box box;
    size_t size;
    const char* why;
  };
  const Row rows[] = {
      {{4, 4}, {{2, 0}, {4, 4}}, 64, "no box at [2, 0] of shape [4, 4]"},
      {{4, 4}, {{UINT64_MAX, 0}, {2, 4}}, 32, "no box at"},
      {{4, 4}, {{0}, {4}}, 16, "no box at [0] of shape [4] in [4, 4]"},
      {{4, 4}, {{0, 0}, {4, 4}}, 60, "needs 64 bytes, given are 60"},
      {{UINT64_MAX, 4}, {{0, 0}, {4, 4}}, 64, "beyond 64 bits"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const ShardedTensor shard{.name = "w",
                              .dtype = DType::f32,
                              .shape = row.shape,
                              .box = row.box,
                              .bytes = std::span(bytes).first(row.size)};
    const Layout layout{.format = "dcp"};
    const std::function<void()> calls[] = {
        [&] { save(std::span(&shard, 1), layout, dir.file("a")); },
        [&] { save_async({shard}, layout, dir.file("a")).get(); },
        [&] { Saver(1, layout, dir.file("a")).save(0, {.tensors = {shard}}); },
        [&] {
          begin_save(make_thread_ranks(1)[0], {.tensors = {shard}}, layout,
                     dir.file("a"));
        }};
    for (const auto& call : calls) {
      try {
        call();
        FAIL("it was saved");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kUsage);
        CHECK(std::string(error.what()).find(row.why) != std::string::npos);
      }
    }
  }
  CHECK(!std::filesystem::exists(dir.file("a")));
}

TEST_CASE("a catalog that a program changed is checked by whoever takes it") {
  const test::TempDir dir;
  const Catalog sound = open(kCase + "/ckpt").catalog();
  struct Row {
    std::function<void(Tensor& tensor)> harm;
    const char* why;
  };
  const Row rows[] = {
      {[](Tensor& t) { t.pieces.at(0).extent.file = 99; }, "in file 99 of"},
      {[](Tensor& t) {
         t.shape = {UINT64_MAX, UINT64_MAX};
       },
       "beyond 64 bits"},
      {[](Tensor& t) { t.dtype = static_cast<DType>(250); }, "no dtype 250"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    Catalog harmed = sound;
    row.harm(harmed.tensors[0]);
    const Layout layout{.format = "dcp"};
    const std::function<void()> calls[] = {
        [&] { Checkpoint{harmed}; },
        [&] { run(harmed, layout, dir.file("a")); },
        [&] { plan(harmed, layout, dir.file("a")); },
        [&] { into_dialect(harmed, "dcp"); },
        [&] { diff(sound, harmed); },
        [&] { digest(harmed); },
        [&] { validate_sharding_integrity(harmed, true); }};
    for (const auto& call : calls) {
      try {
        call();
        FAIL("it was taken");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kUsage);
        CHECK(std::string(error.what()).find(row.why) != std::string::npos);
      }
    }
  }
  CHECK_THROWS_WITH_AS(run({}, {.format = "dcp"}, dir.file("a")),
                       doctest::Contains("no tensors to write"), Error);
  CHECK_THROWS_WITH_AS(into_dialect(sound, "nowhere"),
                       doctest::Contains("unknown format"), Error);
  CHECK(!std::filesystem::exists(dir.file("a")));
}

TEST_CASE("open: rules that a program brings count, whoever wrote the files") {
  const test::TempDir dir;
  const std::string rules = dir.file("rules.json");
  std::ofstream(rules) << R"({"model.norm.weight": 0})";
  const std::string path = std::string(CKPT_TEST_DATA) + "/hf/llama/ckpt";
  const Checkpoint opened = open(path, {.shard_dims_file = rules});
  CHECK(opened.catalog().find("model.norm.weight")->tp == TpRule::split(0));
  CHECK_THROWS_AS(open(path, {.shard_dims_file = dir.file("none")}), Error);
}

// Every rank's part of every tensor, by the dialect's rules: two ranks that
// hold the same of a matrix would be no tensor parallelism.
TEST_CASE("formats' modules: what they share has the ABI's shape") {
  // If a row changes, increment kFormatAbi and write the new size here.
  CHECK(std::string_view(kFormatAbi).substr(0, 13) == "ckpt format 8");
#ifndef _LIBCPP_VERSION
  const std::vector<size_t> sizes{
      sizeof(Catalog), sizeof(Tensor), sizeof(Piece),     sizeof(Extent),
      sizeof(File),    sizeof(Object), sizeof(Sidecar),   sizeof(Problem),
      sizeof(Target),  sizeof(Layout), sizeof(NewFormat), sizeof(Strategy)};
  CHECK(fmt::format("{}", fmt::join(sizes, " ")) ==
        "720 208 112 48 112 72 88 136 848 144 136 104");
  CHECK(offsetof(Extent, file) == 40);
  CHECK(offsetof(Piece, flat) == 48);
#endif
}

// Whoever listens to progress stands for whatever fails in the middle.
TEST_CASE("run: a lack of memory keeps what was copied, other errors nothing") {
  namespace fs = std::filesystem;
  constexpr uint64_t kItem = 16 << 20;
  const test::TempDir dir;
  const std::vector<std::byte> bytes(kItem, std::byte(7));
  std::vector<ShardedTensor> shards;
  for (const char* name : {"a", "b", "c", "d"})
    shards.push_back({.name = name,
                      .dtype = DType::u8,
                      .shape = Shape{kItem},
                      .box = {{0}, {kItem}},
                      .bytes = bytes});
  const std::string from = dir.file("from.safetensors");
  const Layout layout{.format = "safetensors", .single_file = true};
  save(shards, layout, from, {.sync = false});
  const Catalog source = open(from).catalog();

  struct Row {
    const char* what;
    std::function<void()> fail;
    bool kept;
  };
  const Row rows[] = {
      {"an Error", [] { throw resource_error({}, "too little memory"); }, true},
      {"operator new", [] { throw std::bad_alloc(); }, true},
      {"anything else", [] { throw std::runtime_error("of a program"); },
       false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const std::string to = dir.file("to.safetensors");
    const std::string staging = dir.file(".to.safetensors.ckpt-staging");
    SaveOptions options{.threads = 1, .sync = false};
    options.progress = [&](uint64_t done, uint64_t) {
      if (done > 5 * kItem / 2) row.fail();
    };
    CHECK_THROWS(run(source, layout, to, options));
    CHECK_FALSE(fs::exists(to));
    CHECK(fs::exists(staging) == row.kept);

    uint64_t read = 0;  // again, after what was kept
    options.resume = true;
    options.progress = [&](uint64_t done, uint64_t) { read = done; };
    run(source, layout, to, options);
    CHECK(values(open(to).read("d")) == values(open(from).read("d")));
    CHECK_FALSE(fs::exists(staging));
    CHECK(read == (row.kept ? 2 : 4) * kItem);
    fs::remove(to);
    fs::remove(to + ".ckpt-manifest.json");
  }
}

TEST_CASE("run: a damaged source is not copied as if it were sound") {
  namespace fs = std::filesystem;
  const test::TempDir dir;
  const std::string copy = dir.file("m.pt");
  fs::copy_file(kCase + "/other/tp1dp1/step_3/model/pp_00/tp_00/sdp_00.pt",
                copy);
  fs::permissions(copy, fs::perms::owner_all);
  const Layout layout{.format = "safetensors", .single_file = true};
  const std::string first = dir.file("first.safetensors");
  run(open(copy).catalog(), layout, first);

  const auto flip = [](const std::string& path, uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  };
  // A zip record has a checksum …
  const Catalog zip = open(copy).catalog();
  REQUIRE(!zip.crcs.empty());
  flip(copy, zip.crcs.back().begin + 1);
  const std::string out = dir.file("out.safetensors");
  CHECK_THROWS_WITH_AS(run(zip, layout, out),
                       doctest::Contains("does not have its stored CRC-32"),
                       Error);
  CHECK(!fs::exists(out));
  run(zip, layout, out, {.ignore_checksums = true});
  CHECK(fs::exists(out));
  // … and what ckpt wrote has a manifest.
  flip(first, fs::file_size(first) - 1);
  const Layout torch{.format = "torch", .single_file = true};
  CHECK_THROWS_WITH_AS(run(open(first).catalog(), torch, dir.file("second.pt")),
                       doctest::Contains("it was written with"), Error);
  CHECK(!fs::exists(dir.file("second.pt")));
}

}  // namespace ckpt
