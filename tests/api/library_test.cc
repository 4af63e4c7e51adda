// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "ckpt/ckpt.h"
#include "ckpt/format.h"
#include "ckpt/parallel.h"
#include "ckpt/sharded.h"
#include "tests/support/temp_file.h"

// reshard_tensor and lazy_load as fairseq2 documents its functions of those
// names: shards of data-parallel ranks are rows, shards of tensor-parallel
// ranks are parts of one dimension, all else is the same on every rank.

namespace ckpt {
namespace {

TensorData tensor(Shape shape, std::vector<uint8_t> values) {
  TensorData data{DType::u8, std::move(shape), {}};
  for (const uint8_t value : values)
    data.bytes.push_back(static_cast<std::byte>(value));
  return data;
}

std::vector<uint8_t> values(const TensorData& data) {
  std::vector<uint8_t> result;
  for (const std::byte byte : data.bytes)
    result.push_back(static_cast<uint8_t>(byte));
  return result;
}

std::vector<uint8_t> range(uint8_t begin, uint8_t end) {
  std::vector<uint8_t> result(end - begin);
  std::iota(result.begin(), result.end(), begin);
  return result;
}

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
  // And cut again: ceil(5 / 2) rows, then the rest; a rank may get none.
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
  // The peer drops the rest of 4 x 2 rows over three ranks in silence.
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

// What Megatron's rank (tp, pp, ep) saved, by the file that its pieces are in.
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

// Names, shapes and bytes are those of `expected`, an HF checkpoint.
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
  // The tensors alone: nothing says what they mean.
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

// Every rank's part of every tensor, by the dialect's rules: two ranks that
// hold the same of a matrix would be no tensor parallelism.
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

TEST_CASE("formats' modules: what they share has the ABI's shape") {
  // A row that changes: count kFormatAbi on, and write the new size here.
  CHECK(std::string_view(kFormatAbi).substr(0, 13) == "ckpt format 5");
#ifndef _LIBCPP_VERSION
  const std::vector<size_t> sizes{
      sizeof(Catalog), sizeof(Tensor), sizeof(Piece),     sizeof(Extent),
      sizeof(File),    sizeof(Object), sizeof(Sidecar),   sizeof(Problem),
      sizeof(Target),  sizeof(Layout), sizeof(NewFormat), sizeof(Strategy)};
  CHECK(fmt::format("{}", fmt::join(sizes, " ")) ==
        "672 208 112 48 112 72 88 136 800 144 136 104");
  CHECK(offsetof(Extent, file) == 40);
  CHECK(offsetof(Piece, flat) == 48);
#endif
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
