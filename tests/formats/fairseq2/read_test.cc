// SPDX-License-Identifier: Apache-2.0
// Every golden that fairseq2 itself wrote, assembled from its pieces and
// compared with the peer's full tensors.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>

#include "ckpt/error.h"
#include "formats/fairseq2/fairseq2.h"
#include "formats/safetensors/safetensors.h"
#include "tests/support/assemble.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt::fairseq2 {
namespace {

namespace fs = std::filesystem;

Catalog read(const std::string& path,
             const formats::ReadOptions& options = {}) {
  const auto reader = make_reader();
  const formats::Support support = reader->supports(path);
  CHECK_MESSAGE(support.yes, path << ": " << support.why);
  return reader->read_catalog(path, options);
}

std::string golden(const std::string& name) {
  return test::data("fairseq2_native/" + name);
}

// Compares name, dtype, shape and bytes of all tensors of one kind.
void check_equal(const Catalog& got, Kind kind, const std::string& expected) {
  const Catalog want = safetensors::make_reader()->read_catalog(expected, {});
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : got.tensors)
    if (tensor.kind == kind) by_name.emplace(tensor.name, &tensor);
  CHECK(by_name.size() == want.tensors.size());
  for (const Tensor& tensor : want.tensors) {
    CAPTURE(tensor.name);
    REQUIRE(by_name.contains(tensor.name));
    const Tensor& mine = *by_name[tensor.name];
    CHECK(mine.dtype == tensor.dtype);
    CHECK(mine.shape == tensor.shape);
    CHECK(test::assemble(got, mine) == test::assemble(want, tensor));
  }
}

TEST_CASE("fairseq2: every golden equals what its writer says it holds") {
  size_t cases = 0;
  for (const auto& entry : fs::directory_iterator(golden(""))) {
    const std::string dir = entry.path().string();
    if (!fs::exists(dir + "/case.json")) continue;
    ++cases;
    CAPTURE(dir);
    const auto info = test::read_json(dir + "/case.json");
    std::vector<std::string> bases{dir + "/ckpt"};
    if (fs::exists(dir + "/other")) {
      for (const auto& other : fs::directory_iterator(dir + "/other"))
        if (other.path().filename().string().starts_with("tp"))
          bases.push_back(other.path().string());
    }
    for (const std::string& base : bases) {
      CAPTURE(base);
      formats::ReadOptions options;
      // The other topologies have no model.yaml beside them.
      if (base != bases[0]) options.family = info["model_family"];
      if (base != bases[0] && fs::exists(dir + "/ckpt/model.yaml")) {
        // The family's config decides the embedding's dimension.
      }
      const Catalog catalog = read(base, options);
      check_equal(catalog, Kind::model, dir + "/expected.safetensors");
      const bool optim = fs::exists(dir + "/expected_optim.safetensors");
      bool has_optim = false;
      for (const Tensor& tensor : catalog.tensors)
        has_optim = has_optim || tensor.kind == Kind::optim;
      if (base == bases[0]) CHECK(has_optim == optim);
      if (has_optim)
        check_equal(catalog, Kind::optim, dir + "/expected_optim.safetensors");
    }
    const Catalog catalog = read(bases[0]);
    CHECK(catalog.topology.tp == info["topology"]["tp"]);
    CHECK(catalog.topology.pp == info["topology"]["pp"]);
    CHECK(catalog.topology.dp == info["topology"]["sdp"]);
    CHECK(catalog.family == info["model_family"].get<std::string>());
    for (const Tensor& tensor : catalog.tensors) {
      if (tensor.kind != Kind::model || catalog.topology.tp == 1) continue;
      CAPTURE(tensor.name);
      const auto& dims = info["shard_dims"];
      if (dims.contains(tensor.name))
        CHECK(tensor.tp == TpRule::split(dims[tensor.name].get<uint32_t>()));
      else
        CHECK(tensor.tp == TpRule::replicated());
    }
  }
  CHECK(cases == 16);
}

}  // namespace
}  // namespace ckpt::fairseq2
