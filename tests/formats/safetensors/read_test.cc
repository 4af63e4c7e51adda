// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>

#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "formats/safetensors/safetensors.h"
#include "lib/hash/crc32.h"
#include "lib/pickle/value.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/processor.h"
#include "tests/support/temp_file.h"

namespace ckpt::safetensors {
namespace {

using test::data;

Catalog read(const std::string& path) {
  return make_reader()->read_catalog(path, {});
}

const Problem* find_problem(const Catalog& catalog, std::string_view kind) {
  for (const Problem& problem : catalog.problems)
    if (problem.kind == kind) return &problem;
  return nullptr;
}

// A file with one-byte tensors.
std::string file_of(const std::vector<std::string>& names,
                    std::optional<Metadata> metadata = {}) {
  std::vector<Described> tensors;
  for (const std::string& name : names)
    tensors.push_back({.name = name, .dtype = "U8", .shape = {1}, .bytes = 1});
  return encode_header(tensors, metadata) + std::string(names.size(), 'x');
}

void check_case(const std::string& folder) {
  const auto expected =
      test::read_json(data(folder + "/expected_tensors.json"));
  REQUIRE(!expected.empty());
  for (const auto& item : expected.items()) {
    const std::string& file = item.key();
    const nlohmann::json& tensors = item.value();
    const Catalog catalog = read(data(folder + "/ckpt/" + file));
    CAPTURE(file);
    CHECK(catalog.tensors.size() == tensors.size());
    for (const Tensor& tensor : catalog.tensors) {
      CAPTURE(tensor.name);
      REQUIRE(tensors.contains(tensor.name));
      const auto& want = tensors[tensor.name];
      CHECK(info(tensor.dtype).safetensors == want["dtype"].get<std::string>());
      CHECK(tensor.shape == Dims(want["shape"].get<std::vector<uint64_t>>()));
      const std::string bytes = test::content(catalog, tensor);
      CHECK(bytes.size() == want["nbytes"]);
      CHECK(crc32(0, std::as_bytes(std::span(bytes))) == want["crc32"]);
    }
  }
}

}  // namespace

TEST_CASE("safetensors: goldens hold what the reference reads from them") {
  check_case("safetensors/all_dtypes");
  check_case("safetensors/odd_but_valid");
}

TEST_CASE("safetensors: a sharded directory equals the file it came from") {
  const std::string folder = data("safetensors/hf_sharded");
  const Catalog sharded = read(folder + "/ckpt");
  const Catalog whole = read(folder + "/expected.safetensors");
  CHECK(sharded.files.size() == 3);
  CHECK(sharded.dialect == "hf");
  CHECK(sharded.problems.empty());
  REQUIRE(sharded.sidecars.size() == 1);
  CHECK(sharded.sidecars[0].name == "config.json");
  REQUIRE(sharded.tensors.size() == whole.tensors.size());
  for (const Tensor& tensor : whole.tensors) {
    const Tensor* same = sharded.find(tensor.name);
    REQUIRE(same != nullptr);
    CHECK(same->dtype == tensor.dtype);
    CHECK(test::content(sharded, *same) == test::content(whole, tensor));
  }
  // The index can be opened by its name too.
  CHECK(read(folder + "/ckpt/model.safetensors.index.json").tensors.size() ==
        whole.tensors.size());
}

TEST_CASE("safetensors: every malformed index has its outcome") {
  for (const test::Bad& row : test::bad_rows("index/")) {
    const std::string path = data("bad/" + row.file);
    if (row.file == "index/bin_index_missing/") continue;  // torch's
    CAPTURE(row.file);
    CAPTURE(row.what);
    CHECK(make_reader()->supports(path).yes);
    try {
      const Catalog catalog = read(path);
      CHECK(row.may("ACCEPT"));
      if (row.may("ACCEPT_WARN")) CHECK(!catalog.problems.empty());
    } catch (const Error& error) {
      CHECK(row.may("REJECT"));
      CHECK((error.code() == ExitCode::kDamaged ||
             error.code() == ExitCode::kUnsafe));
    }
  }
}

TEST_CASE("safetensors: an index that lies is refused with names") {
  struct Row {
    const char* folder;
    const char* why;
    ExitCode code;
  };
  const Row rows[] = {
      {"missing_shard", "1 of the 2 files that weight_map names is missing: ",
       ExitCode::kDamaged},
      {"traversal_parent/ckpt",
       "\"../outside.safetensors\" is not a plain file", ExitCode::kUnsafe},
      {"traversal_absolute", "is not a plain file name", ExitCode::kUnsafe},
      {"traversal_backslash", "is not a plain file name", ExitCode::kUnsafe},
      {"dot_and_empty_names", "is not a plain file name", ExitCode::kUnsafe},
      {"nul_in_name", "\\x00", ExitCode::kUnsafe},
      {"tensor_not_in_shard", "ghost: the index says it is in model-0000",
       ExitCode::kDamaged},
      {"no_weight_map", "\"weight_map\" is missing", ExitCode::kDamaged},
      {"weight_map_array", "weight_map: expected an object, found an array",
       ExitCode::kDamaged},
      {"index_duplicate_keys", "given twice in weight_map", ExitCode::kDamaged},
      {"index_deep", "expected an object, found an array at byte 14",
       ExitCode::kDamaged},
      {"shard_is_directory", "is a directory", ExitCode::kDamaged},
      {"incomplete_set_no_index",
       "files of a set of 3 are missing: model-00002-of-00003",
       ExitCode::kDamaged},
  };
  for (const Row& row : rows) {
    CAPTURE(row.folder);
    try {
      read(data(std::string("bad/index/") + row.folder));
      CHECK(false);
    } catch (const Error& error) {
      const std::string what = error.what();
      CAPTURE(what);
      CHECK(what.find(row.why) != what.npos);
      CHECK(error.code() == row.code);
    }
  }
}

TEST_CASE("safetensors: odd indexes are read with a warning") {
  const Catalog extra = read(data("bad/index/tensor_not_in_index"));
  REQUIRE(find_problem(extra, "unindexed_tensor"));
  CHECK(find_problem(extra, "unindexed_tensor")->tensor == "extra");
  CHECK(extra.find("extra") != nullptr);
  const Catalog twice = read(data("bad/index/tensor_in_two_shards"));
  REQUIRE(find_problem(twice, "duplicate_tensor"));
  REQUIRE(twice.find("a") != nullptr);
  CHECK(twice.find("a")->pieces[0].extent.file == 0);
  CHECK(find_problem(read(data("bad/index/wrong_total_size")), "total_size"));
}

TEST_CASE("safetensors: which files of a directory are taken") {
  struct Row {
    const char* what;
    std::vector<const char*> files;
    size_t taken;
  };
  const Row rows[] = {
      {"a bare model wins over shards",
       {"model.safetensors", "model-00001-of-00002.safetensors"},
       1},
      {"a complete set without an index",
       {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
       2},
      {"numbers from zero",
       {"model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"},
       2},
      {"mistral keeps both",
       {"consolidated.safetensors", "model.safetensors"},
       1},
      {"any files together", {"x.safetensors", "y.safetensors"}, 2},
      {"hidden files are none", {"._x.safetensors", "y.safetensors"}, 1},
      {"a variant", {"model.fp16.safetensors"}, 1},
  };
  for (const Row& row : rows) {
    CAPTURE(row.what);
    const test::TempDir dir;
    for (const char* file : row.files) dir.write(file, file_of({file}));
    const Catalog catalog = read(dir.path);
    CHECK(catalog.files.size() == row.taken);
    CHECK(catalog.tensors.size() == row.taken);
  }
}

TEST_CASE("safetensors: one name in two files is an error") {
  const test::TempDir dir;
  dir.write("x.safetensors", file_of({"a", "w"}));
  dir.write("y.safetensors", file_of({"w", "b"}));
  CHECK_THROWS_WITH_AS(
      read(dir.path),
      doctest::Contains("w: is in two files: x.safetensors and y.safetensors"),
      Error);
}

TEST_CASE("safetensors: files may be links, as in a Hugging Face cache") {
  const test::TempDir dir;
  dir.write("blobs/sha", file_of({"w"}));
  std::filesystem::create_directories(dir.file("snapshots/rev"));
  const std::string link = dir.file("snapshots/rev/model.safetensors");
  std::filesystem::create_symlink("../../blobs/sha", link);
  CHECK(read(dir.file("snapshots/rev")).tensors.size() == 1);
  std::filesystem::remove(dir.file("blobs/sha"));
  CHECK_THROWS_AS(read(dir.file("snapshots/rev")), Error);
}

TEST_CASE("safetensors: metadata of shards is merged, differences noted") {
  const test::TempDir dir;
  dir.write("a.safetensors",
            file_of({"a"}, Metadata{{"format", "pt"},
                                    {"x", "1"},
                                    {"DCP_SHARDING_INFO", "{}"}}));
  dir.write("b.safetensors", file_of({"b"}, Metadata{{"x", "2"}, {"y", "3"}}));
  const Catalog catalog = read(dir.path);
  REQUIRE(catalog.objects.size() == 1);
  const pickle::Document& document = *catalog.objects[0].document;
  const auto value = [&](std::string_view key) {
    const pickle::Id id = document.find(catalog.objects[0].node, key);
    return id == pickle::kNoId ? "absent" : std::string(document.text(id));
  };
  CHECK(catalog.objects[0].name == "__metadata__");
  CHECK(value("format") == "pt");
  CHECK(value("x") == "1");
  CHECK(value("y") == "3");
  CHECK(value("DCP_SHARDING_INFO") == "absent");
  CHECK(find_problem(catalog, "metadata_differs"));
  CHECK(find_problem(catalog, "dcp_shard"));
}

TEST_CASE("safetensors: family and dialect from config.json") {
  const test::TempDir dir;
  dir.write("model.safetensors", file_of({"encoder.w"}));
  CHECK(read(dir.path).dialect.empty());
  dir.write("config.json", R"({"model_type":"mamba2","limit":Infinity})");
  CHECK(read(dir.path).family == "mamba2");
  CHECK(read(dir.path).dialect == "hf");
  CHECK(make_reader()->read_catalog(dir.path, {.family = "llama"}).family ==
        "llama");
  dir.write("config.json", "{");
  CHECK(find_problem(read(dir.path), "config_json"));
}

TEST_CASE("safetensors: 100,000 empty tensors take no quadratic time") {
  std::vector<Described> tensors;
  std::vector<std::string> names;
  for (size_t i = 0; i < 100'000; ++i) names.push_back(std::to_string(i));
  for (const std::string& name : names)
    tensors.push_back({.name = name, .dtype = "F32", .shape = {0}, .bytes = 0});
  const test::TempFile file(encode_header(tensors, std::nullopt));
  const double begin = test::processor_seconds();
  CHECK(read(file.path).tensors.size() == tensors.size());
  CHECK(test::processor_seconds() - begin < 5);
}

TEST_CASE("safetensors: content decides, then the name") {
  struct Row {
    const char* name;
    std::string content;
    bool yes;
  };
  const Row rows[] = {
      {"x.bin", file_of({"w"}), true},
      {"x.safetensors", "", true},
      {"x.safetensors", file_of({"w"}).substr(0, 20), true},
      {"x.safetensors", "PK\3\4 and so on", false},
      {"x.bin", "garbage that is longer than a header", false},
      {"x.bin", "", false},
      {"model.safetensors.index.json", "{}", true},
      {"other.json", "{}", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const test::TempFile file(row.content, row.name);
    CHECK(make_reader()->supports(file.path).yes == row.yes);
  }
}

}  // namespace ckpt::safetensors
