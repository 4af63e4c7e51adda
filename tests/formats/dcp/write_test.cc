// SPDX-License-Identifier: Apache-2.0
// What the dcp writer lays out: ranks' boxes, and files in which the reader
// finds everything again. (tests/app/formats/dcp_interop_test.py: so does
// torch.)
#include <doctest/doctest.h>

#include <set>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/dcp/boxes.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/save.h"
#include "lib/pickle/value.h"
#include "tests/support/assemble.h"
#include "tests/support/random_catalog.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

using test::Random;
using test::TempDir;

std::string boxes_of(const Shape& shape, const TpRule& rule, bool rows,
                     const dcp::Mesh& mesh) {
  const Tensor tensor{.name = "t", .shape = shape};
  const dcp::Cutter cutter(tensor, rule, rows, mesh);
  std::string text;
  for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
    text += rank ? " | " : "";
    cutter.boxes(rank, [&](const Box& box) {
      text += to_string(box.offset) + "+" + to_string(box.shape);
    });
  }
  return text;
}

// As torch 2.13 puts them into .metadata (docs: dcp, sections 6 and 7).
TEST_CASE("dcp: boxes of the ranks") {
  struct Row {
    Shape shape;
    TpRule rule;
    dcp::Mesh mesh;
    const char* boxes;
  };
  const TpRule none = TpRule::replicated();
  const Row rows[] = {
      {{5, 3},
       none,
       {4, 1},
       "[0, 0]+[2, 3] | [2, 0]+[2, 3] | [4, 0]+[1, 3] | [5, 0]+[0, 3]"},
      {{11}, none, {4, 1}, "[0]+[3] | [3]+[3] | [6]+[3] | [9]+[2]"},
      {{6}, none, {4, 1}, "[0]+[2] | [2]+[2] | [4]+[2] | [6]+[0]"},
      {{}, none, {2, 1}, "[]+[] | []+[]"},
      {{0, 2}, none, {2, 1}, "[0, 0]+[0, 2] | [0, 0]+[0, 2]"},
      // rank = dp * tp ranks + tp
      {{11}, TpRule::split(0), {2, 2}, "[0]+[3] | [6]+[3] | [3]+[3] | [9]+[2]"},
      {{6, 10},
       TpRule::split(1),
       {2, 2},
       "[0, 0]+[3, 5] | [0, 5]+[3, 5] | [3, 0]+[3, 5] | [3, 5]+[3, 5]"},
      {{4, 5},
       TpRule::split(1),
       {2, 4},
       "[0, 0]+[2, 2] | [0, 2]+[2, 2] | [0, 4]+[2, 1] | [0, 5]+[2, 0] | "
       "[2, 0]+[2, 2] | [2, 2]+[2, 2] | [2, 4]+[2, 1] | [2, 5]+[2, 0]"},
      {{5, 4},
       TpRule::split(0),
       {2, 4},
       "[0, 0]+[1, 4] | [2, 0]+[1, 4] | [4, 0]+[1, 4] | [5, 0]+[0, 4] | "
       "[1, 0]+[1, 4] | [3, 0]+[1, 4] | [5, 0]+[0, 4] | [5, 0]+[0, 4]"},
      {{4}, none, {2, 2}, "[0]+[2] | [0]+[2] | [2]+[2] | [2]+[2]"},
      // gate and up: each rank has a part of both
      {{8}, TpRule::split(0, 2), {1, 2}, "[0]+[2][4]+[2] | [2]+[2][6]+[2]"},
      {{12},
       TpRule::split(0, 2),
       {2, 2},
       "[0]+[3] | [3]+[3] | [6]+[3] | [9]+[3]"},
      {{1, 4},
       TpRule::split(1, 2),
       {2, 2},
       "[0, 0]+[1, 1][0, 2]+[1, 1] | [0, 1]+[1, 1][0, 3]+[1, 1] | "
       "[1, 0]+[0, 1][1, 2]+[0, 1] | [1, 1]+[0, 1][1, 3]+[0, 1]"},
  };
  for (const Row& row : rows) {
    CAPTURE(to_string(row.shape));
    CHECK(boxes_of(row.shape, row.rule, true, row.mesh) == row.boxes);
  }
  CHECK_THROWS_WITH_AS(
      boxes_of({9}, TpRule::split(0, 2), true, {1, 2}),
      doctest::Contains("[9] can't be split along dimension 0 in 2"), Error);
}

TEST_CASE("dcp: boxes cover each tensor once, replicas aside") {
  Random random(7);
  const auto upto = [&](uint64_t n) { return random() % (n + 1); };
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    for (uint64_t d = upto(3); d > 0; --d) shape.push_back(upto(9));
    TpRule rule = TpRule::replicated();
    if (!shape.empty() && upto(2)) {
      const uint32_t dim = static_cast<uint32_t>(upto(shape.size() - 1));
      const uint32_t groups = static_cast<uint32_t>(1 + upto(2));
      if (shape[dim] % groups == 0) rule = TpRule::split(dim, groups);
    }
    const dcp::Mesh mesh{static_cast<uint32_t>(1 + upto(5)),
                         static_cast<uint32_t>(1 + upto(3))};
    const Tensor tensor{.name = "t", .shape = shape};
    const dcp::Cutter cutter(tensor, rule, upto(3) != 0, mesh);
    std::set<std::pair<Dims, Dims>> seen;
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
      const auto replicas = cutter.replicas(rank);
      cutter.boxes(rank, [&](const Box& box) {
        CHECK(inside(box, shape));
        const bool added = seen.emplace(box.offset, box.shape).second;
        if (volume(box) == 0) return;
        CHECK(added == (replicas.first == rank));
        if (added) total += volume(box);
      });
    }
    CAPTURE(to_string(shape));
    CHECK(total == element_count(shape));
  }
}

// The tensors of a source in memory order, in files that exist.
Catalog random_source(Random& random, const TempDir& dir) {
  Catalog source;
  source.format = "torch";
  for (int i = 0; i < 12; ++i) {
    Tensor tensor = test::random_tensor(random, "t." + std::to_string(i));
    if (element_size(tensor.dtype) == 0 || info(tensor.dtype).torch.empty())
      continue;
    tensor.pieces = test::random_pieces(random, tensor.shape, false);
    tensor.tp = tensor.shape.empty() ? TpRule::replicated()
                                     : TpRule::split(static_cast<uint32_t>(
                                           random() % tensor.shape.size()));
    source.tensors.push_back(std::move(tensor));
  }
  test::place_randomly(random, source, 2, true);
  const auto files = test::files_of(source);
  for (size_t f = 0; f < files.size(); ++f)
    source.files[f].path = dir.write(
        "source" + std::to_string(f),
        {reinterpret_cast<const char*>(files[f].data()), files[f].size()});
  return source;
}

TEST_CASE("dcp: what is written is read again") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    const TempDir dir;
    const Catalog source = random_source(random, dir);
    Layout layout{.format = "dcp"};
    layout.topology.dp = static_cast<uint32_t>(1 + random() % 5);
    layout.topology.tp = static_cast<uint32_t>(1 + random() % 3);
    const Target target = dcp::make_writer()->lay_out(source, layout);
    CHECK(target.catalog.topology == layout.topology);
    CHECK(target.files.back().path == ".metadata");
    test::write_files(source, target, dir.file("out"));

    Catalog found = dcp::make_reader()->read_catalog(dir.file("out"), {});
    locate(found);
    REQUIRE(found.tensors.size() == source.tensors.size());
    for (const Tensor& tensor : source.tensors) {
      const Tensor* back = found.find(tensor.name);
      REQUIRE(back);
      CHECK(back->shape == tensor.shape);
      CHECK(same_bytes(back->dtype, tensor.dtype));
      CHECK(test::assemble(found, *back) == test::assemble(source, tensor));
    }
  }
}

TEST_CASE("dcp: values, files and paths of a save") {
  const TempDir dir;
  Catalog source;
  Target target;
  target.catalog.tensors.push_back({.name = "w", .shape = {2}});
  dcp::Save save(source, target, {.directory = "step"});
  pickle::Document document;
  const auto seven = document.add_int(7);
  save.add_value("step", document, seven, 1);
  save.add_piece(0, {{1}, {1}}, 2);
  save.add_piece(0, {{0}, {1}}, 0);
  save.set_path("step", {"train", int64_t{3}});
  save.add_file("common.json", "{}");
  save.finish(4, true);

  std::vector<std::string> paths;
  for (const TargetFile& file : target.files) paths.push_back(file.path);
  CHECK(paths ==
        std::vector<std::string>{"step/__0_0.distcp", "step/__1_0.distcp",
                                 "step/__2_0.distcp", "step/common.json",
                                 "step/.metadata"});
  CHECK(target.catalog.files.size() == 3);
  // Sorted by rank, whatever order they came in.
  CHECK(target.catalog.tensors[0].pieces[0].box.offset == Dims{0});
  // Pieces of one dtype and shape share their frames.
  CHECK(target.files[0].shared[0].bytes == target.files[2].shared[0].bytes);

  Catalog filled;
  filled.tensors.push_back(
      {.name = "w", .shape = {2}, .pieces = {{.box = Box::whole({2})}}});
  filled.files.push_back({.path = dir.write("w", "12345678"), .size = 8});
  test::write_files(filled, target, dir.path);
  const dcp::Metadata found =
      dcp::read_metadata(dir.file("step/.metadata"), {});
  REQUIRE(found.planner);
  CHECK(found.planner->at("step") ==
        std::vector<dcp::PathElement>{"train", int64_t{3}});
  CHECK(found.planner->at("w") == std::vector<dcp::PathElement>{"w"});
  CHECK(found.version == "1.0.0");
  REQUIRE(found.bytes.size() == 1);
  CHECK(found.bytes[0].name == "step");
}

TEST_CASE("dcp: refuses what it can't hold") {
  struct Row {
    Tensor tensor;
    Topology topology;
    ExitCode code;
    const char* why;
  };
  const Row rows[] = {
      {{.name = "x", .dtype = DType::f4, .shape = {2}},
       {},
       ExitCode::kUnfaithful,
       "x: a distributed checkpoint can't hold f4"},
      {{.name = "x", .shape = {4, 4}},
       {.tp = 2},
       ExitCode::kUnfaithful,
       "[4, 4] over 2 tensor-parallel ranks may be split or replicated"},
      {{.name = "x", .shape = {4}},
       {.pp = 3},
       ExitCode::kUnfaithful,
       "has no pp ranks, asked for pp=3"},
      {{.name = "x\xff", .shape = {4}},
       {},
       ExitCode::kUnfaithful,
       "a name that is not UTF-8 has no place in .metadata"},
      {{.name = "x", .shape = {0, uint64_t{1} << 63}},
       {},
       ExitCode::kUnfaithful,
       "torch has no sizes like 9223372036854775808"},
      {{.name = "x", .shape = {4}},
       {.tp = 100'000, .dp = 100'000},
       ExitCode::kUnfaithful,
       "10000000000 files"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    Catalog source;
    source.tensors.push_back(row.tensor);
    source.tensors[0].pieces.push_back({.box = Box::whole(row.tensor.shape)});
    source.files.push_back({.path = "x", .size = 1 << 20});
    const Layout layout{.format = "dcp", .topology = row.topology};
    try {
      dcp::make_writer()->lay_out(source, layout);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.code() == row.code);
      CHECK(std::string(error.what()).find(row.why) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ckpt
