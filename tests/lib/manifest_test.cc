// SPDX-License-Identifier: Apache-2.0
#include "lib/manifest.h"

#include <doctest/doctest.h>

#include <random>

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

namespace {

std::string noise(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// With `part` at `at` of what the manifest describes.
bool stale_with(const std::string& whole, size_t at, const std::string& part) {
  Manifest manifest;
  {
    const test::TempFile file(whole);
    manifest.identity = identity_of(io::Handle::open_read(file.path));
    --manifest.identity->mtime;
    const test::TempFile text(to_json(manifest));
    const Manifest read = read_manifest(text.path);
    CHECK(read.identity->samples == manifest.identity->samples);
  }
  std::string other = whole;
  other.replace(at, part.size(), part);
  const test::TempFile file(other);
  return is_stale(manifest, io::Handle::open_read(file.path));
}

}  // namespace

TEST_CASE("manifest: another step is another file, damage is this one") {
  for (const size_t size : {0, 300, 1000, 5000, 40'000, 1'000'000}) {
    CAPTURE(size);
    const std::string whole = noise(size, 1);
    CHECK(!stale_with(whole, 0, ""));
    if (size == 0) continue;
    const size_t middle = size / 2;
    CHECK(!stale_with(whole, middle, std::string(1, char(~whole[middle]))));
    CHECK(!stale_with(whole, size - 1, std::string(1, char(~whole.back()))));
    if (size < 5000) continue;
    CHECK(!stale_with(whole, middle, noise(512, 2)));
    CHECK(!stale_with(whole, 300, std::string(size - 600, '\0')));
    CHECK(stale_with(whole, 300, noise(size - 600, 2)));
    if (size > 5000) CHECK(stale_with(whole, middle, noise(size / 4, 2)));
  }
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
