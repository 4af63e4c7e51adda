// SPDX-License-Identifier: Apache-2.0
#include "lib/manifest.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt {

TEST_CASE("manifest: what is written is read back") {
  Manifest manifest;
  manifest.format = "torch";
  manifest.source_path = "a \"b\"";
  manifest.source_format = "safetensors";
  manifest.files["x.pt"] = uint64_t{1} << 40;
  manifest.tensors["w"] = {DType::bf16, Shape{2, 3}, {1, 2}, {}};
  manifest.tensors["v"] = {
      DType::bf16, Shape{}, {3, 4}, std::pair(DType::f32, Digest{5, 6})};
  const test::TempFile file(to_json(manifest));
  const Manifest read = read_manifest(file.path);
  CHECK(read.format == "torch");
  CHECK(read.source_path == "a \"b\"");
  CHECK(read.files == manifest.files);
  CHECK(read.tensors.at("w").digest == Digest{1, 2});
  CHECK(read.tensors.at("w").shape == Shape{2, 3});
  CHECK(!read.tensors.at("w").source);
  CHECK(read.tensors.at("v").source->second == Digest{5, 6});
}

TEST_CASE("manifest: refuses, and says why") {
  struct Row {
    const char* json;
    const char* why;
  };
  const Row rows[] = {
      {R"({"ckpt_manifest":2})", "a manifest of version 2"},
      {R"({"ckpt_manifest":1,"format":"x","source":{"path":"","format":""},
           "files":{},"tensors":{"w":{"dtype":"f31"}}})",
       "unknown dtype f31"},
      {R"({"ckpt_manifest":1,"format":"x","source":{"path":"","format":""},
           "files":{},"tensors":{"w":{"dtype":"f32","shape":[-1]}}})",
       "a shape holds -1"},
      {R"({"ckpt_manifest":1,"format":"x","source":{"path":"","format":""},
           "files":{},"tensors":{"w":{"dtype":"f32","shape":[1],
           "digest":"12"}}})",
       "'12' is not a digest"},
  };
  for (const Row& row : rows) {
    const test::TempFile file(row.json);
    CHECK_THROWS_WITH_AS(read_manifest(file.path), doctest::Contains(row.why),
                         Error);
  }
}

}  // namespace ckpt
