// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "ckpt/error.h"
#include "formats/dcp/directory.h"
#include "formats/format.h"
#include "formats/megatron/integrity.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/strategy.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::megatron {
namespace {

namespace fs = std::filesystem;
using test::data;
using test::TempDir;

const std::string kGpt = "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt";
const std::string kNew = "megatron_torch_dist/gpt_common_state_tp2_v0190/ckpt";

Catalog read(const std::string& path) {
  return formats::open(path, "megatron_torch_dist", {});
}

// A copy that may be changed.
struct Copy {
  explicit Copy(const std::string& from) : path(dir.file("ckpt")) {
    fs::copy(data(from), path, fs::copy_options::recursive);
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

const Problem* find_problem(const Catalog& catalog, std::string_view kind) {
  for (const Problem& problem : catalog.problems)
    if (problem.kind == kind) return &problem;
  return nullptr;
}

}  // namespace

TEST_CASE("megatron_torch_dist: a training root leads to its iteration") {
  CHECK(formats::detect(data(kGpt)).format->name == "megatron_torch_dist");
  const Catalog catalog = read(data(kGpt));
  CHECK(catalog.root == data(kGpt));
  CHECK(catalog.path == data(kGpt) + "/iter_0000007");
  CHECK(catalog.topology == Topology{.tp = 2, .pp = 2, .dp = 1, .ep = 1});
  CHECK(catalog.dialect == "mcore");
  const Tensor* fc1 = catalog.find("decoder.layers.mlp.linear_fc1.weight");
  REQUIRE(fc1);
  CHECK(fc1->tp == TpRule::split(1, 2));
  CHECK(fc1->pieces.size() == 16);  // 4 layers, 2 ranks, 2 halves
}

TEST_CASE("megatron_torch_dist: which iteration") {
  const Copy copy(kGpt);
  fs::copy(copy.file("iter_0000007"), copy.file("iter_0000012"),
           fs::copy_options::recursive);
  const auto chosen = [&] { return fs::path(read(copy.path).path).filename(); };
  CHECK(chosen() == "iter_0000007");  // the tracker says so
  copy.write(kTracker, " 12 \n");
  CHECK(chosen() == "iter_0000012");
  fs::remove(copy.file(kTracker));
  CHECK(chosen() == "iter_0000012");  // the newest
  fs::remove(copy.file("iter_0000012/metadata.json"));
  CHECK(chosen() == "iter_0000007");  // the newest complete one
  copy.write(kTracker, "12");
  const Catalog catalog = read(copy.path);
  CHECK(fs::path(catalog.path).filename() == "iter_0000007");
  const Problem* warning = find_problem(catalog, "tracker");
  REQUIRE(warning);
  CHECK(warning->message.find("names iter_0000012") != std::string::npos);
  fs::create_directory_symlink(copy.file("iter_0000007"),
                               copy.file("iter_0000020"));
  copy.write(kTracker, "20");
  CHECK(chosen() == "iter_0000020");
  fs::rename(copy.file("iter_0000007"), copy.file("release"));
  copy.write(kTracker, "release");
  CHECK(chosen() == "release");
  fs::create_directory(copy.file("release/weights"));
  for (const char* name : {"metadata.json", "common.pt", ".metadata"})
    fs::rename(copy.file("release/") + name,
               copy.file("release/weights/") + name);
  for (const auto& entry : fs::directory_iterator(copy.file("release")))
    if (entry.is_regular_file())
      fs::rename(entry, copy.file("release/weights") / entry.path().filename());
  CHECK(chosen() == "weights");
}

TEST_CASE("megatron_torch_dist: refuses, and says why") {
  struct Row {
    std::string name;
    std::function<void(const Copy&)> change;
    ExitCode code;
    const char* why;
  };
  const auto config = [](const char* text) {
    return [text](const Copy& copy) {
      copy.write("iter_0000007/metadata.json", text);
    };
  };
  const auto remove = [](const char* name) {
    return [name](const Copy& copy) {
      fs::remove(copy.file(std::string("iter_0000007/") + name));
    };
  };
  const Row rows[] = {
      {"backend", config(R"({"sharded_backend": "other",
                             "sharded_backend_version": 1})"),
       ExitCode::kDamaged, "backend 'other' version 1"},
      {"version", config(R"({"sharded_backend": "torch_dist",
                             "sharded_backend_version": 2})"),
       ExitCode::kDamaged, "backend 'torch_dist' version 2"},
      {"common", config(R"({"sharded_backend": "torch_dist",
          "sharded_backend_version": 1, "common_backend": "x",
          "common_backend_version": 1})"),
       ExitCode::kDamaged, "load_common with backend 'x'"},
      {"json", config(R"({"sharded_backend": )"), ExitCode::kDamaged,
       "metadata.json"},
      {"no index", remove(".metadata"), ExitCode::kMissing, "has no .metadata"},
      {"no common part", remove("common.pt"), ExitCode::kMissing,
       "there is no object common_state/shard_0_1"},
      {"no data file", remove("__1_0.distcp"), ExitCode::kDamaged,
       "files listed in the index are missing: __1_0.distcp"},
      {"tracker", [](const Copy& copy) { copy.write(kTracker, "soon"); },
       ExitCode::kDamaged, "'soon' is neither an iteration nor 'release'"},
      {"unfinished",
       [](const Copy& copy) {
         fs::remove(copy.file("iter_0000007/metadata.json"));
         fs::remove(copy.file(kTracker));
       },
       ExitCode::kMissing, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Copy copy(kGpt);
    row.change(copy);
    try {
      read(copy.path);
      FAIL("was read");
    } catch (const Error& error) {
      CAPTURE(std::string(error.what()));
      CHECK(error.code() == row.code);
      CHECK(std::string(error.what()).find(row.why) != std::string::npos);
    }
  }
}

TEST_CASE("megatron_torch_dist: an unfinished save is told") {
  const Copy copy(kGpt);
  const std::string path = copy.file("iter_0000007");
  fs::remove(path + "/metadata.json");
  const formats::Detection detection = formats::detect(path);
  CHECK(detection.format->name == "megatron_torch_dist");
  CHECK_THROWS_WITH_AS(read(path), doctest::Contains("incomplete save"), Error);
  // Without common.pt, the index shows it.
  fs::remove(path + "/common.pt");
  CHECK(dcp::megatron_sign(path) == "_extra_state/shard_ in .metadata");
  fs::rename(path + "/.metadata", path + "/.metadata.tmp");
  copy.write("iter_0000007/metadata.json", config_text("torch_dist"));
  CHECK_THROWS_WITH_AS(read(path), doctest::Contains("was cut short"), Error);
}

TEST_CASE("megatron_torch_dist: what is odd is noted") {
  const Copy copy(kGpt);
  copy.write("iter_0000007/metadata.json",
             R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                 "new_field": []})");
  copy.write("iter_0000007/modelopt_state/metadata.json", "{}");
  copy.write("iter_0000007/__9_0.distcp", "x");
  copy.write("iter_0000007/run_config.yaml", "a: 1");
  const Catalog catalog = read(copy.path);
  const Problem* field = find_problem(catalog, "unknown_field");
  REQUIRE(field);
  CHECK(field->message == "new_field is not known, and ignored");
  size_t strays = 0;
  for (const Problem& problem : catalog.problems)
    strays += problem.kind == "stray_file";
  CHECK(strays == 2);
  REQUIRE(catalog.sidecars.size() == 1);
  CHECK(catalog.sidecars[0].name == "run_config.yaml");
}

TEST_CASE("megatron_torch_dist: the common part of newer cores") {
  const Catalog catalog = read(data(kNew));
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(catalog.objects,
                               [&](const Object& o) { return o.name == name; });
  };
  CHECK(has("args"));
  CHECK(has("iteration"));
  CHECK_FALSE(has("common_state/shard_0_1"));
}

TEST_CASE("megatron_torch_dist: a grid of objects lacks one") {
  // Renames the object in the index to another key's.
  const Copy copy(kGpt);
  const std::string path = copy.file("iter_0000007/.metadata");
  std::string text = test::read_all(path);
  const std::string from = "rng_state/shard_0.1_2.2";
  const std::string to = "rng_stata/shard_0.0_1.1";
  for (size_t at = 0; (at = text.find(from, at)) != text.npos;)
    text.replace(at, from.size(), to);
  copy.write("iter_0000007/.metadata", text);
  const Catalog catalog = read(copy.path);
  const Problem* problem = find_problem(catalog, "object_grid");
  REQUIRE(problem);
  CHECK(problem->severity == Problem::Severity::kDamage);
  CHECK(problem->message == "3 of the 4 objects of a grid of [2, 2] are there");
}

TEST_CASE("megatron: strategies by action, backend and version") {
  CHECK(find_strategy(Action::kLoadSharded, "zarr", 1, "").format ==
        "megatron_zarr");
  CHECK(find_strategy(Action::kSaveSharded, "torch_dist", 1, "").format ==
        "megatron_torch_dist");
  try {
    find_strategy(Action::kLoadSharded, "zarr", 3, "x");
    FAIL("was found");
  } catch (const Error& error) {
    CHECK(error.hint() == "supported are torch_dist 1, zarr 1");
  }
}

TEST_CASE("megatron: integrity.json") {
  struct Row {
    const char* name;
    std::function<void(const Copy&)> change;
    const char* problem;  // "": none
  };
  const Row rows[] = {
      {"whole", [](const Copy&) {}, ""},
      {"another byte",
       [](const Copy& copy) {
         std::string text = test::read_all(copy.file("__1_0.distcp"));
         text[100] = static_cast<char>(text[100] ^ 1);
         copy.write("__1_0.distcp", text);
       },
       "it was written with 1095f9700a0844f2"},
      {"gone", [](const Copy& copy) { fs::remove(copy.file("__1_0.distcp")); },
       "is listed, but not there"},
      {"not listed", [](const Copy& copy) { copy.write("notes.txt", "mine"); },
       ""},
      {"algorithm",
       [](const Copy& copy) {
         copy.write("integrity.json", R"({"algorithm": "md5", "files": {}})");
       },
       "checksums of kind 'md5'"},
      {"path",
       [](const Copy& copy) {
         copy.write("integrity.json",
                    R"({"algorithm": "sha256", "files": {"../x": "0"}})");
       },
       "not a plain file name"},
      {"no JSON", [](const Copy& copy) { copy.write("integrity.json", "{"); },
       ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Copy copy(kNew);
    row.change(copy);
    const auto result = check_integrity_file(copy.path, {});
    const bool damaged = *row.problem || row.name == std::string("no JSON");
    REQUIRE(result.problems.size() == (damaged ? 1 : 0));
    if (damaged)
      CHECK(result.problems[0].message.find(row.problem) != std::string::npos);
  }
  CHECK(check_integrity_file(data(kGpt), {}).bytes == 0);
}

}  // namespace ckpt::megatron
