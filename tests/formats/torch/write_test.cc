// SPDX-License-Identifier: Apache-2.0
// The writer's output, read back: the same tensors and the same values around
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/format.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

using test::content;
using test::data;
using test::materialise;

Catalog read(const std::string& path) {
  return torch::make_reader()->read_catalog(path, {});
}

Layout single_file(const std::string& name) {
  return {.format = "torch",
          .topology = {},
          .max_shard_size = 0,
          .single_file = true,
          .name = name};
}
Layout directory(uint64_t max_shard_size = 0) {
  return {.format = "torch",
          .topology = {},
          .max_shard_size = max_shard_size,
          .single_file = false,
          .name = "out"};
}

// Lays out, writes and reads back; the directory holds the files.
struct Written {
  test::TempDir dir;
  Target target;
  Catalog catalog;
};
std::unique_ptr<Written> write(const Catalog& source, const Layout& layout) {
  auto written = std::make_unique<Written>();
  const std::string path =
      layout.single_file ? written->dir.file(layout.name) : written->dir.path;
  written->target = torch::make_writer()->lay_out(source, layout);
  materialise(source, written->target, path);
  written->catalog = read(path);
  return written;
}

// A tree as canonical JSON, without what a rewrite may change: a tensor's
// storage and its place there.
nlohmann::json tree_of(const Catalog& catalog) {
  const Skeleton& skeleton = *catalog.skeleton;
  nlohmann::json tree =
      pickle::to_json(*skeleton.document, skeleton.root, 1'000'000);
  std::vector<nlohmann::json*> queue{&tree};
  while (!queue.empty()) {
    nlohmann::json& value = *queue.back();
    queue.pop_back();
    if (value.is_object()) {
      const bool tensor = value.contains("!tensor");
      for (const char* key : {"storage", "storage_offset", "storage_numel",
                              "stride", "location", "metadata"})
        if (tensor) value.erase(key);
      if (value.contains("!storage")) value["!storage"] = value["location"] = 0;
    }
    if (value.is_structured())
      for (nlohmann::json& child : value) queue.push_back(&child);
  }
  return tree;
}

void check_same(const Catalog& a, const Catalog& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const Tensor& x = a.tensors[i];
    const Tensor& y = b.tensors[i];
    CAPTURE(x.name);
    CHECK(x.name == y.name);
    CHECK(x.dtype == y.dtype);
    CHECK(x.shape == y.shape);
    CHECK(x.kind == y.kind);
    CHECK(x.param == y.param);
    CHECK(x.parameter == y.parameter);
    CHECK(x.requires_grad == y.requires_grad);
    CHECK((x.tie != 0) == (y.tie != 0));
    CHECK(content(a, x) == content(b, y));
  }
}

TEST_CASE("torch writer: a file comes back as it was") {
  for (const char* file :
       {"torch_pt/container_variants/ckpt/big_endian.pt",
        "torch_pt/container_variants/ckpt/proto5.pt",
        "torch_pt/container_variants/ckpt/rezipped_deflated.pt",
        "torch_pt/dtypes/ckpt/model.pt",
        "torch_pt/special_tensors/ckpt/special.pt",
        "torch_pt/training_objects/ckpt/ckpt_p2.pt",
        "torch_pt/training_objects/ckpt/ckpt_p4.pt",
        "torch_pt/training_objects/ckpt/ckpt_weights_only.pt",
        "torch_pt/views/ckpt/views.pt", "torch_pt/whole_module/ckpt/model.pt",
        "torch_pt/whole_module/ckpt/wrapped.pt",
        "torch_legacy/basic/ckpt/legacy_nested.pth",
        "torch_legacy/basic/ckpt/legacy_new_dtypes.pt",
        "torch_legacy/basic/ckpt/legacy_tensor.pt",
        "torch_legacy/py2_old_torch/ckpt/py2.pth",
        "torch_legacy/tar/ckpt/old.pth"}) {
    CAPTURE(std::string(file));
    const Catalog source = read(data(file));
    const auto written = write(source, single_file("again.pt"));
    check_same(source, written->catalog);
    CHECK(written->target.problems.empty());
    CHECK(tree_of(source) == tree_of(written->catalog));
  }
}

TEST_CASE("torch writer: DTensors of all ranks become plain tensors") {
  const Catalog source = read(data("torch_pt/dtensor_per_rank/ckpt"));
  const auto written = write(source, single_file("whole.pt"));
  check_same(source, written->catalog);
}

std::vector<std::string> names(const Catalog& catalog) {
  std::vector<std::string> all;
  for (const Tensor& tensor : catalog.tensors) all.push_back(tensor.name);
  return all;
}

// Renames like the code that selects tensors: in the catalog and its skeleton.
void rename(Catalog& catalog, const std::string& from, const std::string& to) {
  for (Tensor& tensor : catalog.tensors)
    if (tensor.name == from) tensor.name = to;
  for (auto& [node, name] : catalog.skeleton->tensors)
    if (name == from) name = to;
}
void drop(Catalog& catalog, const std::string& prefix) {
  std::erase_if(catalog.tensors, [&](const Tensor& tensor) {
    return tensor.name.starts_with(prefix);
  });
  std::erase_if(catalog.objects, [&](const Object& object) {
    return object.name.starts_with(prefix);
  });
}

TEST_CASE("torch writer: what is left out leaves no trace") {
  Catalog source = read(data("torch_pt/training_objects/ckpt/ckpt_p2.pt"));
  drop(source, "optimizer");
  const auto written = write(source, single_file("model_only.pt"));
  CHECK(names(written->catalog) ==
        std::vector<std::string>{"model.weight", "model.bias", "torch_rng"});
  const auto tree = tree_of(written->catalog);
  CHECK_FALSE(tree.dump().find("param_groups") != std::string::npos);
  CHECK(tree.dump().find("TrainConfig") != std::string::npos);

  Catalog views = read(data("torch_pt/views/ckpt/views.pt"));
  drop(views, "tied_a");
  const auto untied = write(views, single_file("untied.pt"));
  CHECK(untied->catalog.find("tied_b"));
  CHECK_FALSE(untied->catalog.find("tied_a"));
}

TEST_CASE("torch writer: new names keep their place where they fit") {
  Catalog source = read(data("torch_pt/training_objects/ckpt/ckpt_p2.pt"));
  rename(source, "model.weight", "model.w.kernel");
  rename(source, "model.bias", "elsewhere");
  rename(source, "optimizer.state.0.step", "optimizer.state.0.steps");
  const auto written = write(source, single_file("renamed.pt"));
  const auto all = names(written->catalog);
  CHECK(all.front() == "model.w.kernel");
  CHECK(all.back() == "elsewhere");
  CHECK(std::ranges::count(all, "optimizer.state.0.steps") == 1);
  for (const Tensor& tensor : source.tensors) {
    CAPTURE(tensor.name);
    const Tensor* found = written->catalog.find(tensor.name);
    REQUIRE(found);
    CHECK(content(source, tensor) == content(written->catalog, *found));
  }
}

TEST_CASE("torch writer: an object that loses a part gives up the others") {
  Catalog source = read(data("torch_pt/special_tensors/ckpt/special.pt"));
  drop(source, "sparse_coo.indices");
  const auto written = write(source, single_file("parts.pt"));
  CHECK(written->catalog.find("sparse_coo.values"));
  CHECK(written->target.problems.size() == 1);
  CHECK(written->target.problems.at(0).message.find("lost another part") !=
        std::string::npos);
}

TEST_CASE("torch writer: shards, with ties in one of them") {
  const Catalog source = read(data("torch_pt/sharded_bin/ckpt"));
  const auto written = write(source, directory(100));
  const auto index = nlohmann::json::parse(
      test::read_all(written->dir.file("pytorch_model.bin.index.json")));
  const auto& map = index["weight_map"];
  CHECK(map.size() == source.tensors.size());
  CHECK(map["lm_head.weight"] == map["model.embed_tokens.weight"]);
  CHECK(index["metadata"]["total_size"] == 90 + 30 + 20 + 30 + 20);
  CHECK(names(written->catalog).size() == source.tensors.size());
  CHECK(written->catalog.problems.empty());
  for (const Tensor& tensor : source.tensors)
    CHECK(content(source, tensor) ==
          content(written->catalog, *written->catalog.find(tensor.name)));
  std::set<std::string> files(map.begin(), map.end());
  CHECK(files == std::set<std::string>{"pytorch_model-00001-of-00002.bin",
                                       "pytorch_model-00002-of-00002.bin"});

  const auto one = write(source, directory());
  CHECK(io::is_file(one->dir.file("pytorch_model.bin")));
}

// A catalog of one tensor over the bytes of a file.
Catalog one_tensor(const std::string& path, DType dtype, const Shape& shape) {
  Catalog catalog;
  catalog.files.push_back({.path = path, .size = io::is_file(path) ? 64u : 0u});
  Tensor tensor;
  tensor.name = "x";
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.pieces.push_back({.box = Box::whole(shape),
                           .flat = {},
                           .extent = {.offset = 0, .strides = {}, .file = 0}});
  catalog.tensors.push_back(tensor);
  return catalog;
}

TEST_CASE("torch writer: dtypes that torch names otherwise, or lacks") {
  const test::TempFile file(std::string(64, '\x5a'));
  struct Row {
    DType dtype;
    Shape shape;
    DType stored;
    Shape stored_shape;
  };
  const Row rows[] = {
      {DType::f4, {2, 6}, DType::f4x2, {2, 3}},
      {DType::f8_e8m0, {3}, DType::f8_e8m0, {3}},
      {DType::u32, {2, 2}, DType::u32, {2, 2}},
      {DType::bf16, {0, 4}, DType::bf16, {0, 4}},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(name(row.dtype)));
    const Catalog source = one_tensor(file.path, row.dtype, row.shape);
    const auto written = write(source, single_file("x.pt"));
    const Tensor& tensor = written->catalog.tensors.at(0);
    CHECK(tensor.dtype == row.stored);
    CHECK(tensor.shape == row.stored_shape);
    CHECK(content(written->catalog, tensor) ==
          std::string(byte_size(tensor), '\x5a'));
  }
  struct Refused {
    DType dtype;
    Shape shape;
    const char* why;
  };
  const Refused refused[] = {
      {DType::f6_e2m3, {4}, "x: torch has no dtype f6_e2m3"},
      {DType::f4, {2, 3}, "x: f4 of shape [2, 3]"},
  };
  for (const Refused& row : refused)
    CHECK_THROWS_WITH_AS(
        torch::make_writer()->lay_out(
            one_tensor(file.path, row.dtype, row.shape), single_file("x.pt")),
        doctest::Contains(row.why), Error);
}

TEST_CASE("torch writer: what has no place is named") {
  Catalog source = read(data("torch_pt/training_objects/ckpt/ckpt_p2.pt"));
  source.skeleton.reset();
  const auto written = write(source, single_file("flat.pt"));
  CHECK(names(written->catalog) == names(source));
  CHECK(written->target.problems.size() == source.objects.size());
}

TEST_CASE("torch writer: the directory in the zip") {
  struct Row {
    const char* path;
    const char* root;
  };
  const Row rows[] = {
      {"a/b.c.pt", "b.c"}, {"ckpt.tar", "ckpt"}, {"x", "x"},
      {".pt", "archive"},  {"ü.pt", "archive"},  {"/tmp/m.bin", "m"},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.path));
    CHECK(torch::archive_root_of(row.path) == row.root);
  }
}

}  // namespace
}  // namespace ckpt
