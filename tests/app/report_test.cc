// SPDX-License-Identifier: Apache-2.0
#include "app/print/report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "lib/pickle/value.h"
#include "tests/support/catalogs.h"

namespace ckpt::app {
namespace {

using nlohmann::ordered_json;
using test::tensor;

std::vector<std::string> keys(const ordered_json& object) {
  std::vector<std::string> list;
  for (const auto& [key, value] : object.items()) list.push_back(key);
  return list;
}

using Keys = std::vector<std::string>;

Catalog sample() {
  Tensor split = tensor("layers.0.w", {4, 2});
  split.tp = TpRule::split(1);
  split.pieces[0].box = {{0, 0}, {4, 1}};
  split.pieces.push_back(split.pieces[0]);
  split.pieces[1].box.offset = {0, 1};
  split.pieces[1].extent = {.offset = 64, .strides = {}, .file = 1};
  Tensor state = tensor("layers.0.w.exp_avg", {4, 2});
  state.kind = Kind::optim;
  state.dtype = DType::f32;
  state.param = "layers.0.w";
  state.state = "exp_avg";
  Catalog made = test::catalog({split, state});
  made.files.push_back({.path = "other.pt", .size = 128});
  made.files.push_back({.path = "other.pt", .size = 300});  // inflated
  made.topology.tp = 2;
  auto document = std::make_shared<pickle::Document>();
  made.objects.push_back({"step", document, document->add_int(5000)});
  made.problems.push_back({Problem::Severity::kWarning, "total_size",
                           "index.json", "", "says 5, is 6"});
  made.assumptions.push_back("family llama: model.yaml");
  return made;
}

}  // namespace

// The keys and their order are a promise (docs/json.md).
TEST_CASE("report: the inspect document") {
  const ordered_json root = ordered_json::parse(inspect_json(sample()));
  CHECK(keys(root) == Keys{"schema", "format", "version", "path", "family",
                           "dialect", "trainer", "adapter", "topology", "bytes",
                           "files", "parameters", "facts", "tensors", "objects",
                           "file_list", "problems", "assumptions"});
  CHECK(root["format"] == "torch");
  CHECK(root["family"] == nullptr);
  CHECK(root["dialect"] == nullptr);
  CHECK(root["topology"].dump() == R"({"tp":2,"pp":1,"dp":1,"ep":1})");
  CHECK(root["bytes"] == 16 + 32);
  CHECK(root["files"] == 2);
  CHECK(root["parameters"] == 8);
  CHECK(root["tensors"][0].dump() ==
        R"({"name":"layers.0.w","dtype":"bf16","shape":[4,2],"bytes":16,)"
        R"("kind":"model","pieces":2,"shard_dim":1})");
  CHECK(root["tensors"][1].dump() ==
        R"({"name":"layers.0.w.exp_avg","dtype":"f32","shape":[4,2],)"
        R"("bytes":32,"kind":"optim","pieces":1,"shard_dim":null,)"
        R"("param":"layers.0.w","state":"exp_avg"})");
  CHECK(root["objects"].dump() ==
        R"([{"name":"step","type":"int","value":5000}])");
  CHECK(root["problems"].dump() ==
        R"([{"kind":"total_size","severity":"warning","file":"index.json",)"
        R"("tensor":"","message":"says 5, is 6"}])");
  CHECK(root["assumptions"].dump() == R"(["family llama: model.yaml"])");
}

TEST_CASE("report: digests and shards are additions") {
  const Digest digests[] = {{1, 2}, {3, 4}};
  const ordered_json root = ordered_json::parse(
      inspect_json(sample(), {.digests = digests, .shards = true}));
  const ordered_json& first = root["tensors"][0];
  CHECK(first["digest"] == "00000000000000010000000000000002");
  CHECK(first["shards"].dump() ==
        R"([{"file":"model.pt","begin":0,"offset":[0,0],"shape":[4,1]},)"
        R"({"file":"other.pt","begin":64,"offset":[0,1],"shape":[4,1]}])");
}

TEST_CASE("report: the verify document") {
  VerifyReport report;
  report.ok = false;
  report.verdict = Verdict::kDamaged;
  report.tensors = 3;
  report.bytes = 10;
  report.files = 2;
  report.problems.push_back(
      {Problem::Severity::kDamage, "digest", "a.pt", "w", "differs"});
  CHECK(
      verify_json(report) ==
      R"({"schema":"ckpt/verify/1","ok":false,"verdict":"damaged","checked":{"tensors":3,"bytes":10,"files":2},)"
      R"("problems":[{"kind":"digest","severity":"damage","file":"a.pt",)"
      R"("tensor":"w","message":"differs"}]})"
      "\n");
}

TEST_CASE("report: tied tensors count once as parameters") {
  Tensor a = tensor("embed.weight", {8, 2});
  Tensor b = tensor("lm_head.weight", {8, 2});
  a.tie = b.tie = 1;
  const Catalog tied = test::catalog({a, b});
  CHECK(totals(tied).parameters == 16);
  CHECK(totals(tied).model == 2);
  CHECK(totals(tied).bytes == 64);
  b.pieces[0].extent.offset = 4;  // another place of the same storage
  CHECK(totals(test::catalog({a, b})).parameters == 32);
}

TEST_CASE("report: types of objects as Python names them") {
  using pickle::Type;
  auto document = std::make_shared<pickle::Document>();
  const auto named = [&](pickle::Id id) {
    return type_name({"x", document, id});
  };
  CHECK(named(document->add_none()) == "NoneType");
  CHECK(named(document->add_bool(true)) == "bool");
  CHECK(named(document->add_big_int("99999999999999999999")) == "int");
  CHECK(named(document->add_string("s")) == "str");
  CHECK(named(document->add_container(Type::kTuple)) == "tuple");
  pickle::Call call;
  call.callable = document->add_global("argparse", "Namespace");
  call.args = document->add_container(Type::kTuple);
  CHECK(named(document->add_call(std::move(call))) == "argparse.Namespace");
}

}  // namespace ckpt::app
