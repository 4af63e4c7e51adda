// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>

#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/safetensors/header.h"
#include "formats/safetensors/safetensors.h"
#include "lib/pickle/config.h"
#include "lib/pickle/value.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt::safetensors {
namespace {

using test::data;

Catalog read(const std::string& path) {
  return make_reader()->read_catalog(path, {});
}

Target lay_out(const Catalog& source, bool single_file, uint64_t most = 0) {
  Layout layout;
  layout.format = "safetensors";
  layout.single_file = single_file;
  layout.max_shard_size = most;
  return make_writer()->lay_out(source, layout);
}

// A catalog whose tensors have no bytes anywhere; enough for layouts.
Catalog catalog_of(const std::vector<Tensor>& tensors) {
  Catalog catalog;
  catalog.tensors = tensors;
  return catalog;
}

Tensor tensor(std::string name, DType dtype, Shape shape) {
  Tensor t;
  t.name = std::move(name);
  t.dtype = dtype;
  t.shape = std::move(shape);
  return t;
}

std::vector<std::string> names_of(const Target& target) {
  std::vector<std::string> names;
  for (const TargetFile& file : target.files) names.push_back(file.path);
  return names;
}

bool has_problem(const Target& target, std::string_view kind) {
  for (const Problem& problem : target.problems)
    if (problem.kind == kind) return true;
  return false;
}

// The shards found in `folder`, regardless of the index.
std::vector<std::string> weights_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : io::list_directory(folder))
    if (name.ends_with(".safetensors")) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("safetensors: rewriting the reference's file gives its bytes") {
  for (const char* file :
       {"safetensors/all_dtypes/ckpt/reference_writer.safetensors",
        "safetensors/hf_sharded/expected.safetensors",
        "safetensors/hf_sharded/other/single_file/model.safetensors",
        "safetensors/hf_sharded/ckpt/model-00001-of-00003.safetensors"}) {
    CAPTURE(file);
    const Catalog source = read(data(file));
    const test::TempDir dir;
    const std::string path = dir.file("out.safetensors");
    test::materialise(source, lay_out(source, true), path);
    const std::string bytes = test::read_all(path);
    if (!source.objects.empty()) {
      CHECK(bytes == test::read_all(data(file)));
    } else {
      // The reference left this out; we add it because transformers wants it.
      CHECK(bytes.substr(8, 33) == R"({"__metadata__":{"format":"pt"},")");
    }
  }
}

TEST_CASE("safetensors: read(write(x)) = x for all dtypes, odd names, shards") {
  for (const char* folder : {"safetensors/all_dtypes/ckpt/model.safetensors",
                             "safetensors/odd_but_valid/ckpt/"
                             "escapes_and_unicode.safetensors",
                             "safetensors/odd_but_valid/ckpt/"
                             "empty_name_and_dots.safetensors",
                             "safetensors/odd_but_valid/ckpt/"
                             "unaligned_data.safetensors",
                             "safetensors/hf_sharded/ckpt"}) {
    for (const uint64_t most : {uint64_t{0}, uint64_t{1}, uint64_t{100}}) {
      CAPTURE(folder);
      const Catalog source = read(data(folder));
      const test::TempDir dir;
      test::materialise(source, lay_out(source, false, most), dir.path);
      const Catalog copy = read(dir.path);
      CHECK(copy.problems.empty());
      REQUIRE(copy.tensors.size() == source.tensors.size());
      for (const Tensor& t : source.tensors) {
        const Tensor* same = copy.find(t.name);
        REQUIRE(same != nullptr);
        CHECK(same->dtype == t.dtype);
        CHECK(same->shape == t.shape);
        CHECK(test::content(copy, *same) == test::content(source, t));
      }
    }
  }
}

TEST_CASE("safetensors: an index as Hugging Face writes it") {
  const std::string folder = data("safetensors/hf_sharded/ckpt/");
  const auto index =
      formats::read_index(folder, "model.safetensors.index.json");
  std::vector<formats::IndexEntry> entries;
  for (const auto& weight : index.weights)
    entries.push_back({weight.tensor, index.files[weight.file]});
  const nlohmann::json rest =
      index.metadata
          ? pickle::to_config(*index.metadata, index.metadata->root())
          : nlohmann::json();
  CHECK(formats::write_index(entries, *index.total_size, rest) ==
        test::read_all(folder + "model.safetensors.index.json"));
  // json.dumps({"metadata": ..., "weight_map": {"é\x7f\n": "f"}}, indent=2,
  //            sort_keys=True)
  const formats::IndexEntry odd = {"\u00e9\x7f\n", "f"};
  CHECK(formats::write_index({&odd, 1}, 3) ==
        "{\n  \"metadata\": {\n    \"total_size\": 3\n  },\n"
        "  \"weight_map\": {\n    \"\\u00e9\\u007f\\n\": \"f\"\n  }\n}\n");
}

TEST_CASE("safetensors: shards are filled greedily in catalog order") {
  const auto bytes = [](std::string name, uint64_t n) {
    return tensor(std::move(name), DType::u8, {n});
  };
  const Catalog source =
      catalog_of({bytes("a", 6), bytes("b", 4), bytes("huge", 11),
                  bytes("c", 1), bytes("d", 10), bytes("e", 0)});
  // huggingface_hub's split_state_dict_into_shards_factory(max 10):
  // huge alone, then a b, then c, then d e.
  const Target target = lay_out(source, false, 10);
  CHECK(names_of(target) ==
        std::vector<std::string>{"model-00001-of-00004.safetensors",
                                 "model-00002-of-00004.safetensors",
                                 "model-00003-of-00004.safetensors",
                                 "model-00004-of-00004.safetensors",
                                 "model.safetensors.index.json"});
  std::string where;
  for (const Tensor& t : target.catalog.tensors)
    where += fmt::format("{}={} ", t.name, t.pieces[0].extent.file);
  CHECK(where == "a=1 b=1 huge=0 c=2 d=3 e=3 ");
  CHECK(names_of(lay_out(source, false)) ==
        std::vector<std::string>{"model.safetensors"});
  CHECK(names_of(lay_out(source, true)) == std::vector<std::string>{""});
  CHECK(names_of(lay_out(catalog_of({}), false)) ==
        std::vector<std::string>{"model.safetensors"});
}

TEST_CASE("safetensors: 5 GB are one file in a directory, more are shards") {
  const auto gigabytes = [](std::string name, uint64_t n) {
    return tensor(std::move(name), DType::u8, {n, 1'000'000'000});
  };
  CHECK(lay_out(catalog_of({gigabytes("a", 3), gigabytes("b", 2)}), false)
            .files.size() == 1);
  CHECK(lay_out(catalog_of({gigabytes("a", 3), gigabytes("b", 3)}), false)
            .files.size() == 3);
  CHECK(lay_out(catalog_of({gigabytes("a", 3), gigabytes("b", 3)}), true)
            .files.size() == 1);
}

TEST_CASE("safetensors: dtypes without a name there") {
  const Target raw =
      lay_out(catalog_of({tensor("f", DType::f4x2, {2, 3})}), true);
  const std::string& header = raw.files[0].literals[0].bytes;
  CHECK(header.find(R"("f":{"dtype":"F4","shape":[2,6])") != header.npos);

  for (const DType dtype : {DType::c128, DType::c32, DType::bits8, DType::qi8,
                            DType::qu8, DType::qi32, DType::qu4x2}) {
    try {
      lay_out(catalog_of({tensor("t", dtype, {4})}), true);
      CHECK(false);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUnfaithful);
      CHECK(error.where().tensor == "t");
      CHECK(!error.hint().empty());
    }
  }
}

TEST_CASE("safetensors: what has no place is named") {
  Catalog source =
      catalog_of({tensor("a", DType::f32, {2}), tensor("b", DType::f32, {2})});
  source.tensors[0].tie = source.tensors[1].tie = 7;
  auto document = std::make_shared<pickle::Document>();
  const pickle::Id step = document->add_int(3);
  source.objects.push_back({"step", document, step});
  source.sidecars.push_back({"config.json", "/x/config.json", 10});
  const Target target = lay_out(source, false);
  CHECK(has_problem(target, "object_left_out"));
  CHECK(target.files.size() == 1);
  CHECK(target.assumptions.size() == 2);  // format pt, ties
  source.dialect = "hf";
  const Target hf = lay_out(source, false);
  REQUIRE(hf.files.size() == 2);
  CHECK(hf.files[1].copy_of == "/x/config.json");
  CHECK(hf.files[1].size == 10);
}

TEST_CASE("safetensors: names that a header can't hold") {
  for (const char* name : {"__metadata__", "\xed\xa0\x80"})
    CHECK_THROWS_AS(lay_out(catalog_of({tensor(name, DType::u8, {1})}), true),
                    Error);
}

TEST_CASE("safetensors: shards of the golden are found again") {
  const std::string folder = data("safetensors/hf_sharded/ckpt");
  const Catalog source = read(folder);
  const test::TempDir dir;
  test::materialise(source, lay_out(source, false, 200), dir.path);
  CHECK(std::filesystem::exists(dir.file("config.json")));
  CHECK(weights_in(dir.path).size() > 1);
  const auto index =
      formats::read_index(dir.path, "model.safetensors.index.json");
  REQUIRE(index.metadata != nullptr);
  CHECK(pickle::to_config(*index.metadata,
                          index.metadata->root())["total_parameters"] == 255);
  CHECK(index.total_size == 540);
}

}  // namespace ckpt::safetensors
