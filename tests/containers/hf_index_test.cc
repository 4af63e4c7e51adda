// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "containers/hf/index.h"

namespace ckpt::formats {

TEST_CASE("index: names of indexes") {
  struct Row {
    const char* name;
    bool is;
  };
  const Row rows[] = {
      {"model.safetensors.index.json", true},
      {"model.safetensors.index.fp16.json", true},
      {"diffusion_pytorch_model.safetensors.index.json", true},
      {".safetensors.index.json", false},
      {"model.safetensors.index", false},
      {"model.safetensors.indexes.json", false},
      {"pytorch_model.bin.index.json", false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    CHECK(is_index_name(row.name, ".safetensors") == row.is);
  }
  CHECK(is_index_name("pytorch_model.bin.index.json", ".bin"));
}

TEST_CASE("numbered: names of a set") {
  struct Row {
    const char* name;
    const char* parts;  // stem number count rest, or "" if it is none
  };
  const Row rows[] = {
      {"model-00001-of-00003.safetensors", "model 1 3 .safetensors"},
      {"model.fp16-00001-of-00002.safetensors", "model.fp16 1 2 .safetensors"},
      {"model-00002-of-00002.fp16.safetensors", "model 2 2 .fp16.safetensors"},
      {"shard-00001-model-00001-of-00001.safetensors",
       "shard-00001-model 1 1 .safetensors"},
      {"a-of-b-1-of-2", "a-of-b 1 2 "},
      {"model-1-of-99999999999.safetensors", ""},
      {"model--of-2.safetensors", ""},
      {"-1-of-2.safetensors", ""},
      {"model-+1-of-2.safetensors", ""},
      {"best-of-5.safetensors", ""},
      {"model.safetensors", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const auto parsed = parse_numbered(row.name);
    CHECK((parsed ? fmt::format("{} {} {} {}", parsed->stem, parsed->number,
                                parsed->count, parsed->rest)
                  : "") == row.parts);
  }
  CHECK(numbered_name("model", 2, 3, ".bin") == "model-00002-of-00003.bin");
  CHECK(numbered_name("m", 100000, 123456, "") == "m-100000-of-123456");
}

TEST_CASE("numbered: sets are complete, or it is said what is missing") {
  struct Row {
    std::vector<std::string> names;
    const char* why;  // "": complete
  };
  const Row rows[] = {
      {{}, ""},
      {{"a", "m-1-of-2", "m-2-of-2", "n-1-of-1"}, ""},
      {{"m-0-of-2", "m-1-of-2"}, ""},
      {{"m-2-of-2", "m-3-of-2"},
       "files of a set of 2 are missing: "
       "m-00001-of-00002"},
      {{"m-1-of-2", "m-00001-of-00002"}, "missing: m-00002-of-00002"},
      {{"m-1-of-2", "m-2-of-2", "m-3-of-2"},
       "3 files are numbered as m-x-of-2"},
      {{"m-1-of-2x", "m-2-of-2y"}, "missing: m-00002-of-00002x"},
      {{"m-7-of-4294967295"}, "files of a set of 4294967295 are missing: "},
      {{"m-1-of-0"}, "1 files are numbered as m-x-of-0"},
  };
  for (const Row& row : rows) {
    const std::string why = row.why;
    CAPTURE(why);
    if (why.empty()) {
      CHECK_NOTHROW(check_complete_sets("d", row.names));
    } else {
      CHECK_THROWS_WITH_AS(check_complete_sets("d", row.names),
                           doctest::Contains(row.why), Error);
    }
  }
}

}  // namespace ckpt::formats
