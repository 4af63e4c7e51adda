// SPDX-License-Identifier: Apache-2.0
// Every torch.save golden: names, dtypes, shapes and bytes as torch itself
// stored them in expected.safetensors, whatever the container.
#include <doctest/doctest.h>

#include <map>

#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "containers/torch/container.h"
#include "formats/format.h"
#include "formats/torch/torch.h"
#include "lib/pickle/json.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

using test::content;
using test::data;
using test::read_json;

Catalog read(const std::string& path) {
  return torch::make_reader()->read_catalog(path, {});
}

Catalog expected(const std::string& golden) {
  return formats::find_format("safetensors")
      .reader->read_catalog(data(golden) + "/expected.safetensors", {});
}

// safetensors stores dtypes that it lacks as raw bytes or plain integers.
bool same_dtype(DType found, DType wanted) {
  if (found == wanted) return true;
  if (found == DType::qi8) return wanted == DType::i8;
  if (found == DType::qu8) return wanted == DType::u8;
  return info(found).safetensors.empty() && wanted == DType::u8;
}

void check_tensor(const Catalog& catalog, const Tensor& tensor,
                  const Catalog& golden, const std::string& name) {
  CAPTURE(tensor.name);
  const Tensor* wanted = golden.find(name);
  REQUIRE(wanted);
  CHECK(same_dtype(tensor.dtype, wanted->dtype));
  if (tensor.dtype == wanted->dtype) CHECK(tensor.shape == wanted->shape);
  CHECK(content(catalog, tensor) == content(golden, *wanted));
}

// One file, and how its names differ from the golden's.
struct Row {
  const char* file;
  const char* prefix = "";
  std::vector<const char*> absent = {};  // tensors that another file has
  const char* renamed = nullptr;         // the only tensor's golden name
};

void check_file(const std::string& golden, const Row& row) {
  CAPTURE(std::string(row.file));
  const Catalog catalog = read(data(golden) + "/ckpt/" + row.file);
  const Catalog wanted = expected(golden);
  const std::string prefix = row.prefix;
  for (const Tensor& tensor : catalog.tensors) {
    REQUIRE(tensor.name.starts_with(prefix));
    check_tensor(catalog, tensor, wanted,
                 row.renamed ? row.renamed : tensor.name.substr(prefix.size()));
  }
  for (const Tensor& tensor : wanted.tensors) {
    CAPTURE(tensor.name);
    const bool absent =
        std::ranges::find(row.absent, tensor.name) != row.absent.end();
    if (!row.renamed)
      CHECK((catalog.find(prefix + tensor.name) == nullptr) == absent);
  }
}

TEST_CASE("torch: goldens of torch 1.13 to 2.13") {
  const std::vector<const char*> kNew = {"u16", "f8"};
  const std::vector<const char*> kOld = {"w", "b", "n",    "e",  "tied", "base",
                                         "c", "i", "view", "bo", "h"};
  const std::pair<const char*, std::vector<Row>> goldens[] = {
      {"torch_pt/container_variants",
       {{"align4096.pt"},
        {"big_endian.pt"},
        {"default.pt"},
        {"ext_safe_name.safetensors.pt"},
        {"file_object.bin"},
        {"minimal_records.pt"},
        {"name.with.dots.pth"},
        {"no_byteorder.pt"},
        {"no_crc.pt"},
        {"proto3.pt"},
        {"proto4.pt"},
        {"proto5.pt"},
        {"rezipped_deflated.pt"},
        {"rezipped_stored.pt"},
        {"ünïcode.pt"}}},
      {"torch_pt/dtensor_per_rank", {{""}}},
      {"torch/dtensor_mesh", {{""}}},
      {"torch_pt/dtypes", {{"model.pt"}}},
      {"torch_pt/sharded_bin", {{""}, {"pytorch_model.bin.index.json"}}},
      {"torch_pt/special_tensors", {{"special.pt"}}},
      {"torch_pt/torch1.13.1",
       {{"model.pt"}, {"ckpt.tar", "model."}, {"legacy.pt"}}},
      {"torch_pt/torch2.1.2",
       {{"model.pt"}, {"ckpt.tar", "model."}, {"legacy.pt"}}},
      {"torch_pt/torch2.4.1",
       {{"model.pt"}, {"ckpt.tar", "model."}, {"legacy.pt", "", {"f8"}}}},
      {"torch_pt/torch2.7.1",
       {{"model.pt"}, {"ckpt.tar", "model."}, {"legacy.pt", "", {"f8"}}}},
      {"torch_pt/training_objects",
       {{"ckpt_p2.pt"},
        {"ckpt_p4.pt"},
        {"ckpt_p5.pt"},
        {"ckpt_weights_only.pt"}}},
      {"torch_pt/views", {{"views.pt"}}},
      {"torch_pt/whole_module", {{"model.pt"}, {"wrapped.pt", "module."}}},
      {"torch_legacy/basic",
       {{"legacy_p2.pt", "", kNew},
        {"legacy_p4.pt", "", kNew},
        {"legacy_nested.pth", "model.", kNew},
        {"legacy_tensor.pt", "", {}, "w"},
        {"legacy_new_dtypes.pt", "", kOld}}},
      {"torch_legacy/py2_old_torch", {{"py2.pth"}}},
      {"torch_legacy/tar", {{"old.pth"}}},
  };
  for (const auto& [golden, rows] : goldens) {
    const std::string shown = golden;
    CAPTURE(shown);
    for (const Row& row : rows) check_file(golden, row);
  }
}

// Returns all objects of a JSON tree whose "!tensor" is a name.
std::vector<nlohmann::json> named_tensors(const nlohmann::json& tree) {
  std::vector<nlohmann::json> found;
  std::vector<const nlohmann::json*> queue{&tree};
  while (!queue.empty()) {
    const nlohmann::json& value = *queue.back();
    queue.pop_back();
    if (value.is_object() && value.contains("!tensor") &&
        value["!tensor"].is_string())
      found.push_back(value);
    if (value.is_structured())
      for (const nlohmann::json& child : value) queue.push_back(&child);
  }
  return found;
}

// expected_objects.json shows every tensor as an independent reader sees it.
TEST_CASE("torch: tensors are what an independent reader sees") {
  size_t compared = 0;
  for (const char* golden :
       {"torch_pt/container_variants", "torch_pt/dtypes",
        "torch_pt/special_tensors", "torch_pt/training_objects",
        "torch_pt/views", "torch_legacy/basic", "torch_legacy/py2_old_torch"}) {
    const auto files = read_json(data(golden) + "/expected_objects.json");
    for (const auto& [file, tree] : files.items()) {
      const std::string shown = std::string(golden) + "/" + file;
      CAPTURE(shown);
      const Catalog catalog = read(data(golden) + "/ckpt/" + file);
      for (const auto& wanted : named_tensors(tree)) {
        const std::string name = wanted["!tensor"];
        CAPTURE(name);
        const Tensor* tensor = catalog.find(name);
        if (!tensor) continue;  // a scale, or a part with another name
        ++compared;
        CHECK(nlohmann::json(
                  std::vector(tensor->shape.begin(), tensor->shape.end())) ==
              wanted["size"]);
        CHECK(info(tensor->dtype).torch == wanted["dtype"].get<std::string>());
        CHECK(tensor->requires_grad == wanted["requires_grad"]);
        CHECK(tensor->parameter == wanted.value("parameter", false));
      }
    }
  }
  CHECK(compared > 150);
}

TEST_CASE("torch: the globals that pickles name") {
  for (const char* golden : {"torch_pt/training_objects", "torch_pt/views",
                             "torch_pt/dtensor_per_rank"}) {
    const auto files = read_json(data(golden) + "/case.json")["files"];
    for (const auto& [file, facts] : files.items()) {
      const std::string shown = file;
      CAPTURE(shown);
      const Catalog catalog = read(data(golden) + "/ckpt/" + file);
      CHECK(nlohmann::json(catalog.globals) == facts["globals"]);
    }
  }
}

TEST_CASE("torch: optimizer states say whose they are") {
  const Catalog catalog =
      read(data("torch_pt/training_objects/ckpt/ckpt_p2.pt"));
  struct Row {
    const char* name;
    Kind kind;
    const char* param;
    const char* state;
  };
  const Row rows[] = {
      {"model.weight", Kind::model, "", ""},
      {"optimizer.state.0.exp_avg", Kind::optim, "0", "exp_avg"},
      {"optimizer.state.1.step", Kind::optim, "1", "step"},
      {"torch_rng", Kind::other, "", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    const Tensor* tensor = catalog.find(row.name);
    REQUIRE(tensor);
    CHECK(tensor->kind == row.kind);
    CHECK(tensor->param == row.param);
    CHECK(tensor->state == row.state);
  }
}

TEST_CASE("torch: ties, parameters and views") {
  const Catalog catalog = read(data("torch_pt/views/ckpt/views.pt"));
  CHECK(catalog.find("tied_a")->tie != 0);
  CHECK(catalog.find("tied_a")->tie == catalog.find("tied_b")->tie);
  CHECK(catalog.find("alias")->tie == 0);
  CHECK(catalog.find("param")->parameter);
  CHECK(catalog.find("param")->requires_grad);
  CHECK(catalog.find("param_frozen")->parameter);
  CHECK_FALSE(catalog.find("param_frozen")->requires_grad);
  CHECK(catalog.find("requires_grad")->requires_grad);
  CHECK(catalog.find("conj")->pieces[0].transform == kConjugate);
  CHECK(catalog.find("neg")->pieces[0].transform == kNegate);
  const Extent& expanded = catalog.find("expanded")->pieces[0].extent;
  CHECK((expanded.strides[0] == 0 || expanded.strides[1] == 0));
  REQUIRE(catalog.skeleton);
  CHECK(catalog.skeleton->tensors.size() == catalog.tensors.size());
}

TEST_CASE("torch: one rank's file lists whole tensors and says what lacks") {
  const Catalog catalog =
      read(data("torch_pt/dtensor_per_rank/ckpt/dtensor_rank1.pt"));
  CHECK(catalog.find("a")->shape == Shape{5, 3});
  CHECK(catalog.find("a")->pieces[0].box == Box{{3, 0}, {2, 3}});
  CHECK(catalog.find("r")->pieces[0].box == Box{{0, 0}, {2, 2}});
  std::vector<std::string> lacking;
  for (const Problem& problem : catalog.problems)
    if (problem.kind == "missing_parts") lacking.push_back(problem.tensor);
  CHECK(lacking == std::vector<std::string>{"a", "b"});
}

TEST_CASE("torch: objects are named, the rest is kept as it is") {
  const Catalog catalog =
      read(data("torch_pt/special_tensors/ckpt/special.pt"));
  std::vector<std::string> names;
  for (const Object& object : catalog.objects) names.push_back(object.name);
  CHECK(names ==
        std::vector<std::string>{"quint8.quantizer", "qint8_channel.quantizer",
                                 "sparse_coo", "sparse_csr", "meta", "nested",
                                 "untyped_storage", "typed_storage"});
  // Scales and zero points, nested sizes, strides and offsets, two storages.
  REQUIRE(catalog.skeleton);
  CHECK(catalog.skeleton->storages.size() == 7);
}

TEST_CASE("torch: weights-only globals") {
  const formats::ReadOptions restricted{
      .family = {}, .shard_dims_file = {}, .restrict_globals = true};
  const auto reader = torch::make_reader();
  for (const auto& entry : std::filesystem::directory_iterator(
           data("torch_pt/training_objects/ckpt"))) {
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    if (name == "ckpt_weights_only.pt")
      CHECK_NOTHROW(reader->read_catalog(entry.path().string(), restricted));
    else
      CHECK_THROWS_WITH_AS(
          reader->read_catalog(entry.path().string(), restricted),
          doctest::Contains("argparse Namespace"), Error);
  }
  struct Row {
    const char* global;
    bool allowed;
  };
  const Row rows[] = {
      {"torch FloatStorage", true},
      {"torch float8_e4m3fn", true},
      {"torch uint3", true},
      {"torch.cuda HalfTensor", true},
      {"torch FloatTensor", true},
      {"torch._utils _rebuild_qtensor", true},
      {"torch load", false},
      {"torch.hub load", false},
      {"posix system", false},
      {"builtins getattr", false},
      {"torch.storage _load_from_bytes", false},
      {"torch.distributed.tensor DTensor", true},
      {"numpy dtype", false},
      {" ", false},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(row.global));
    CHECK(torch::is_allowed_global(row.global) == row.allowed);
  }
}

TEST_CASE("torch: content decides, not the name") {
  struct Row {
    std::string content;
    bool yes;
    const char* why;
  };
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid";
  const Row rows[] = {
      {lfs, false, "git-lfs"},
      {std::string("\x10\0\0\0\0\0\0\0{\"a\":1}         ", 24), false,
       "safetensors"},
      {"\x80\x02}q\0.", false, "plain pickle"},
      {"", false, "empty"},
      {"hello", false, "start with torch's"},
  };
  const auto reader = torch::make_reader();
  for (const Row& row : rows) {
    const test::TempFile file(row.content, "model.pt");
    const auto support = reader->supports(file.path);
    CHECK(support.yes == row.yes);
    CHECK(support.why.find(row.why) != std::string::npos);
    CHECK_THROWS_AS(reader->read_catalog(file.path, {}), Error);
  }
  const Catalog script =
      read(data("torch_pt/whole_module/ckpt/torchscript.pt"));
  CHECK(script.version == "zip 3 of TorchScript");
  CHECK(script.tensors.size() == 2);
}

}  // namespace
}  // namespace ckpt
