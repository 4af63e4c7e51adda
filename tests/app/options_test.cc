// SPDX-License-Identifier: Apache-2.0
#include "app/options/options.h"

#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::app {
namespace {

struct Parsed {
  OutputOptions output;
  SourceOptions source;
  Selection select;
  TopologyOptions topology;
  EngineOptions engine;
  WriteOptions write;
};

void parse(Parsed& parsed, std::vector<std::string> words) {
  CLI::App app;
  add_output_options(app, parsed.output);
  add_source_options(app, parsed.source);
  add_select_options(app, parsed.select);
  add_topology_options(app, parsed.topology);
  add_engine_options(app, parsed.engine);
  add_write_options(app, parsed.write);
  std::ranges::reverse(words);
  app.parse(words);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("options: what they parse into") {
  Parsed got;
  parse(got, {"--tp",       "4→8",
              "--pp=2",     "--keys",
              "*.w",        "--keys",
              "*.b",        "-n",
              "-j",         "3",
              "--max-mem",  "2GiB",
              "-vv",        "--color",
              "never",      "--dtype",
              "bf16",       "--no-fsync",
              "--json",     "--max-shard-size",
              "5GB",        "--device=cuda",
              "--restrict", "--layers",
              "0-3"});
  CHECK(got.topology.tp.from == 4u);
  CHECK(got.topology.tp.to == 8u);
  CHECK(!got.topology.pp.from);
  CHECK(got.topology.pp.to == 2u);
  CHECK(!got.topology.dp.to);
  CHECK(got.topology.any());
  CHECK(got.select.keys == Words{"*.w", "*.b"});
  CHECK(got.select.layers == "0-3");
  CHECK(got.write.dry_run);
  CHECK(!got.write.sync);
  CHECK(got.write.manifest);
  CHECK(got.write.dtype == DType::bf16);
  CHECK(got.write.max_shard_size == 5'000'000'000u);
  CHECK(got.engine.threads == 3);
  CHECK(got.engine.max_mem == uint64_t{2} << 30);
  CHECK(got.engine.cuda);
  CHECK(got.output.verbosity == 2);
  CHECK(got.output.color == When::kNever);
  CHECK(got.output.json);
  CHECK(got.source.read.restrict_globals);
}

TEST_CASE("options: torch's names of dtypes are as good") {
  Parsed got;
  parse(got, {"--dtype", "float16"});
  CHECK(got.write.dtype == DType::f16);
}

TEST_CASE("options: what people type elsewhere is understood") {
  struct Row {
    const char* text;
    DType dtype;
  };
  const Row rows[] = {
      {"fp16", DType::f16},      {"half", DType::f16},
      {"FP32", DType::f32},      {"float", DType::f32},
      {"float32", DType::f32},   {"BF16", DType::bf16},
      {"bfloat16", DType::bf16}, {"torch.bfloat16", DType::bf16},
      {"double", DType::f64}};
  for (const Row& row : rows) {
    CAPTURE(row.text);
    Parsed got;
    parse(got, {"--dtype", row.text});
    CHECK(got.write.dtype == row.dtype);
  }
  // Known as what they are, which --dtype does not make.
  for (const char* text : {"fp8", "FP8_E4M3", "e5m2", "float8_e4m3fn"}) {
    CAPTURE(text);
    Parsed refused;
    CHECK_THROWS_WITH_AS(parse(refused, {"--dtype", text}),
                         doctest::Contains("a cast without scales"), Error);
  }
  Parsed got;
  parse(got, {"-j", "0", "--max-mem", "4G"});
  CHECK(got.engine.threads == 0);
  CHECK(got.engine.max_mem == uint64_t{4} << 30);
}

TEST_CASE("options: wrong values are refused by name") {
  struct Row {
    Words words;
    const char* why;
    ExitCode code = ExitCode::kUsage;
  };
  const Row rows[] = {
      {{"--tp", "0"}, "--tp '0': expected a number from 1"},
      {{"--tp", "-2"}, "--tp '-2'"},
      {{"--tp", "4→"}, "--tp '4→'"},
      {{"--tp", "→4"}, "--tp '→4'"},
      {{"--tp", "4->8->2"}, "--tp '4->8->2'"},
      {{"--tp", "4x"}, "--tp '4x'"},
      {{"--tp", " 4"}, "--tp ' 4'"},
      {{"--tp", "+4"}, "--tp '+4'"},
      {{"--tp", "99999999999999999999"}, "--tp '99999999999999999999'"},
      {{"--ep", "1000001"}, "--ep '1000001'"},
      {{"--max-mem", "lots"}, "--max-mem: "},
      {{"--max-mem", "1MiB"},
       "--max-mem 1MiB: at least 16MiB",
       ExitCode::kResource},
      {{"--max-shard-size", "0"}, "--max-shard-size 0"},
      {{"-j", "-1"}, "--threads '-1'"},
      {{"--tp", "4-"}, "--tp '4-': the shell took"},
      {{"--device", "gpu"}, "--device 'gpu': expected cpu, cuda"},
      {{"--progress", "yes"}, "--progress 'yes': expected always, auto"},
      {{"--dtype", "bf61"}, "--dtype 'bf61': expected bf16, f16"},
      {{"--dtype", "i8"}, "--dtype 'i8'"},
      {{"--layers", "3-1"}, "--layers 3-1: 1 comes before 3"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    Parsed got;
    try {
      parse(got, row.words);
      FAIL("parsed");
    } catch (const Error& error) {
      CHECK(error.code() == row.code);
      CHECK(error.what() == doctest::Contains(row.why));
    }
  }
}

TEST_CASE("options: the target's topology") {
  const Topology source{.tp = 4, .pp = 2, .dp = 1, .ep = 1};
  Parsed got;
  parse(got, {"--tp", "4:8", "--dp", "3"});
  CHECK(got.topology.resolve(source) ==
        Topology{.tp = 8, .pp = 2, .dp = 3, .ep = 1});

  Parsed wrong;
  parse(wrong, {"--tp", "2→8"});
  try {
    wrong.topology.resolve(source);
    FAIL("resolved");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    CHECK(std::string(error.what()) == "--tp 2→8: the source has tp=4, not 2");
    CHECK(error.hint() == "--tp 4:8, or just --tp 8");
  }
}

}  // namespace ckpt::app
