// SPDX-License-Identifier: Apache-2.0
// Layouts, filled in plainly, against the files that fairseq2 itself wrote for
// the same weights at that topology.
#include <doctest/doctest.h>

#include <filesystem>
#include <regex>

#include "ckpt/error.h"
#include "containers/torch/container.h"
#include "containers/torch/tensors.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/safetensors/safetensors.h"
#include "lib/pickle/json.h"
#include "tests/support/assemble.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::fairseq2 {
namespace {

namespace fs = std::filesystem;
using pickle::Id;

std::string golden(const std::string& name) {
  return test::data("fairseq2_native/" + name);
}

Topology topology_of(const std::string& name) {
  Topology grid;
  std::smatch found;
  if (std::regex_search(name, found, std::regex("^tp(\\d+)")))
    grid.tp = static_cast<uint32_t>(std::stoul(found[1]));
  if (std::regex_search(name, found, std::regex("sdp(\\d+)")))
    grid.dp = static_cast<uint32_t>(std::stoul(found[1]));
  return grid;
}

// Reads `from`, writes it for `grid` into a new directory.
struct Written {
  Written(const std::string& from, const Topology& grid)
      : source(make_reader()->read_catalog(from, {})) {
    Layout layout;
    layout.format = "fairseq2";
    layout.topology = grid;
    target = make_writer()->lay_out(source, layout);
    test::write_files(source, target, dir.path);
  }
  Catalog source;
  Target target;
  test::TempDir dir;
};

struct Opened {
  explicit Opened(const std::string& path)
      : file(torch::open_container(path, catalog)), doc(*file.document) {}
  Catalog catalog;
  torch::Container file;
  const pickle::Document& doc;
};

void check_tensor(const Opened& a, Id x, const Opened& b, Id y) {
  const auto mine = torch::as_tensor(a.doc, x, a.file.storages);
  const auto theirs = torch::as_tensor(b.doc, y, b.file.storages);
  REQUIRE(mine.has_value());
  REQUIRE(theirs.has_value());
  CHECK(mine->distributed.has_value() == theirs->distributed.has_value());
  const bool empty = element_count(theirs->shape) == 0;
  // FSDP1's file for a rank without rows has float32 of shape [0], whatever the
  // parameter is.
  if (empty) {
    CHECK(element_count(mine->shape) == 0);
    return;
  }
  CHECK(mine->global_shape() == theirs->global_shape());
  CHECK(mine->shape == theirs->shape);
  CHECK(mine->dtype == theirs->dtype);
  CHECK(torch::read_content(a.catalog, *mine) ==
        torch::read_content(b.catalog, *theirs));
}

// Both files have the same keys in the same order, with equal tensors.
void check_model_file(const std::string& mine, const std::string& theirs) {
  CAPTURE(theirs);
  const Opened a(mine), b(theirs);
  const auto x = a.doc.as_pairs(a.doc.root());
  const auto y = b.doc.as_pairs(b.doc.root());
  REQUIRE(x.has_value());
  REQUIRE(y.has_value());
  // The dicts of pipeline stages were cut by the generator.
  if (theirs.find("pp2") == theirs.npos)
    CHECK(a.doc.type(a.doc.root()) == b.doc.type(b.doc.root()));
  REQUIRE(x->size() == y->size());
  for (size_t i = 0; i < x->size(); i += 2) {
    CAPTURE(a.doc.text((*x)[i]));
    CHECK(a.doc.text((*x)[i]) == b.doc.text((*y)[i]));
    check_tensor(a, (*x)[i + 1], b, (*y)[i + 1]);
  }
}

void check_optimizer_file(const std::string& mine, const std::string& theirs) {
  CAPTURE(theirs);
  const Opened a(mine), b(theirs);
  const auto groups = [](const Opened& opened) {
    auto json = pickle::to_json(
        opened.doc, opened.doc.find(opened.doc.root(), "param_groups"));
    // The other topologies' runs had no learning rate schedule.
    for (auto& group : json) {
      group.erase("lr");
      group.erase("initial_lr");
    }
    return json;
  };
  CHECK(groups(a) == groups(b));
  const auto x = a.doc.as_pairs(a.doc.find(a.doc.root(), "state"));
  const auto y = b.doc.as_pairs(b.doc.find(b.doc.root(), "state"));
  REQUIRE(x->size() == y->size());
  for (size_t i = 0; i < x->size(); i += 2) {
    CHECK(a.doc.as_int((*x)[i]) == b.doc.as_int((*y)[i]));
    const auto v = a.doc.as_pairs((*x)[i + 1]);
    const auto w = b.doc.as_pairs((*y)[i + 1]);
    REQUIRE(v->size() == w->size());
    for (size_t s = 0; s < v->size(); s += 2) {
      CHECK(a.doc.text((*v)[s]) == b.doc.text((*w)[s]));
      check_tensor(a, (*v)[s + 1], b, (*w)[s + 1]);
    }
  }
}

std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> all;
  if (!fs::exists(directory)) return all;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file())
      all.push_back(fs::relative(entry.path(), directory).string());
  std::sort(all.begin(), all.end());
  return all;
}

// Checks every model and optimizer file of the peer's directory.
size_t check_against(const Written& written, const std::string& peer) {
  size_t checked = 0;
  for (const std::string& file : files_below(peer)) {
    const bool model = file.find("/model/") != file.npos;
    const bool optimizer = file.find("/optimizer/") != file.npos;
    if (!model && !optimizer) continue;
    const std::string mine = written.dir.path + "/" + file;
    REQUIRE_MESSAGE(fs::exists(mine), mine);
    if (model)
      check_model_file(mine, peer + "/" + file);
    else
      check_optimizer_file(mine, peer + "/" + file);
    ++checked;
  }
  for (const std::string& file : files_below(written.dir.path))
    if (file.find("/model/") != file.npos)
      CHECK_MESSAGE(fs::exists(peer + "/" + file), file);
  return checked;
}

// The tensors of the output equal the source's.
void check_content(const Catalog& source, const Catalog& again) {
  CHECK(source.tensors.size() == again.tensors.size());
  for (const Tensor& tensor : source.tensors) {
    CAPTURE(tensor.name);
    const Tensor* found = again.find(tensor.name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == tensor.dtype);
    CHECK(found->shape == tensor.shape);
    CHECK(test::assemble(again, *found) == test::assemble(source, tensor));
  }
}

TEST_CASE("fairseq2: other topologies equal the peer's files") {
  size_t topologies = 0, files = 0;
  for (const auto& entry : fs::directory_iterator(golden(""))) {
    const std::string dir = entry.path().string();
    if (!fs::exists(dir + "/other")) continue;
    for (const auto& other : fs::directory_iterator(dir + "/other")) {
      const std::string name = other.path().filename().string();
      if (!name.starts_with("tp")) continue;
      CAPTURE(other.path().string());
      const Written written(dir + "/ckpt", topology_of(name));
      files += check_against(written, other.path().string());
      ++topologies;
    }
  }
  CHECK(topologies == 30);
  CHECK(files >= 60);
}

TEST_CASE("fairseq2: the same topology gives the files back") {
  for (const auto& entry : fs::directory_iterator(golden(""))) {
    const std::string dir = entry.path().string();
    const auto info = test::read_json(dir + "/case.json");
    if (info.contains("variant")) continue;
    CAPTURE(dir);
    const auto& t = info["topology"];
    const Written written(dir + "/ckpt",
                          {.tp = t["tp"], .pp = t["pp"], .dp = t["sdp"]});
    // FSDP1 of 0.5.2 leaves out keys; ours has them, empty.
    if (dir.find("missing") == dir.npos)
      CHECK(check_against(written, dir + "/ckpt") > 0);
    for (const std::string& file : files_below(dir + "/ckpt")) {
      if (file.find("/model/") != file.npos ||
          file.find("/optimizer/") != file.npos)
        continue;
      CAPTURE(file);
      CHECK(test::read_all(written.dir.path + "/" + file) ==
            test::read_all(dir + "/ckpt/" + file));
    }
  }
}

TEST_CASE("fairseq2: any topology reads back the same") {
  const struct {
    std::string name;
    Topology grid;
  } rows[] = {
      {"llama_tp1dp1_bf16", {.tp = 8, .pp = 2, .dp = 3}},
      {"llama_tp2dp2_fsdp2", {.tp = 1, .pp = 1, .dp = 7}},
      {"llama_hsdp_rdp2sdp2", {.tp = 4, .pp = 1, .dp = 5}},
      {"llama_pp2tp2", {.tp = 2, .pp = 3, .dp = 2}},
      {"qwen3_dp3_uneven_fsdp1", {.tp = 1, .pp = 1, .dp = 2}},
      {"qwen3_dp3_uneven_fsdp1", {.tp = 1, .pp = 1, .dp = 5}},
      {"qwen3_dp3_uneven_fsdp1", {.tp = 1, .pp = 1, .dp = 1}},
      {"qwen3_dp3_uneven_fsdp2", {.tp = 1, .pp = 2, .dp = 64}},
      {"wav2vec2_dp2_buffers", {.tp = 3, .pp = 1, .dp = 5}},
      {"legacy046_tp2", {.tp = 4, .pp = 2, .dp = 2}},
      {"nllb_tp2dp1", {.tp = 4, .pp = 2, .dp = 2}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    CAPTURE(to_string(row.grid));
    const Written written(golden(row.name) + "/ckpt", row.grid);
    const Catalog again = make_reader()->read_catalog(written.dir.path, {});
    CHECK(again.topology == row.grid);
    CHECK(again.family == written.source.family);
    check_content(written.source, again);
  }
}

TEST_CASE("fairseq2: the level that was opened is the level that is written") {
  struct Row {
    std::string opened;
    const char* expected;
  };
  const Row rows[] = {
      {"ckpt", "step_7/model/pp_00/tp_01/sdp_00.pt"},
      {"ckpt/step_7", "model/pp_00/tp_01/sdp_00.pt"},
      {"ckpt/step_7/model", "pp_00/tp_01/sdp_00.pt"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.opened);
    const Written written(golden("llama_tp1dp1_bf16/") + row.opened, {.tp = 2});
    CHECK(fs::exists(written.dir.path + "/" + row.expected));
    CHECK(fs::exists(written.dir.path + "/model.yaml"));
  }
}

TEST_CASE("fairseq2: what can't be written faithfully") {
  struct Row {
    std::string name;
    Topology grid;
    const char* why;
  };
  const Row rows[] = {
      {"qwen25_tp4dp1_mixed",
       {.tp = 3},
       "decoder.layers.0.self_attn.q_proj.weight: dimension 0 of [16, 16] has "
       "16 elements, which 3 tensor-parallel"},
      {"qwen25_tp4dp1_mixed",
       {.tp = 5},
       "dimension 0 of [48, 16] has 48 elements, which 5 tensor-parallel"},
      {"llama_tied_blocking",
       {.tp = 2},
       "Tied embeddings are not supported when tensor parallelism is enabled"},
      {"llama_pp2tp2", {.tp = 1, .pp = 4}, "4 pipeline stages for 3 layers"},
      {"llama_pp2tp2",
       {.tp = 1, .pp = 1, .dp = 1, .ep = 2},
       "no expert parallelism"},
      {"legacy052_fsdp1_missing", {.tp = 2}, "[37, 20] has 37 elements"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Catalog source =
        make_reader()->read_catalog(golden(row.name) + "/ckpt", {});
    Layout layout;
    layout.topology = row.grid;
    try {
      make_writer()->lay_out(source, layout);
      FAIL("no error");
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::kUnfaithful);
      const std::string what = e.what();
      CAPTURE(what);
      CHECK(what.find(row.why) != what.npos);
    }
  }
}

}  // namespace
}  // namespace ckpt::fairseq2
