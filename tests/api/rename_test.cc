// SPDX-License-Identifier: Apache-2.0
#include "api/edit/rename.h"

#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "tests/support/temp_file.h"

namespace ckpt::library {
namespace {

Catalog catalog_of(const std::vector<std::string>& names) {
  Catalog catalog;
  for (const std::string& name : names)
    catalog.tensors.push_back({.name = name});
  return catalog;
}

}  // namespace

TEST_CASE("rename: stars stand for what they matched, the first rule wins") {
  const test::TempFile rules(R"({
    "model.layers.*.mlp.*": "blocks.*.ffn.*",
    "model.*": "*",
    "lm_head.weight": "output.weight"})");
  Catalog catalog =
      catalog_of({"model.layers.12.mlp.w1.weight", "model.norm.weight",
                  "lm_head.weight", "other"});
  catalog.tensors.push_back({.name = "lm_head.weight.exp_avg",
                             .kind = Kind::optim,
                             .param = "lm_head.weight",
                             .state = "exp_avg"});
  rename(catalog, rules.path);
  CHECK(catalog.tensors[0].name == "blocks.12.ffn.w1.weight");
  CHECK(catalog.tensors[1].name == "norm.weight");
  CHECK(catalog.tensors[2].name == "output.weight");
  CHECK(catalog.tensors[3].name == "other");
  CHECK(catalog.tensors[4].param == "output.weight");
}

TEST_CASE("rename: refuses, and says why") {
  struct Row {
    const char* rules;
    const char* why;
  };
  const Row rows[] = {
      {R"({"a*": "b"})", "1 stars on the left, 0 on the right"},
      {R"({"a": 1})", "the new name is not a string"},
      {R"([])", "expected an object"},
      {R"({"a.w": "b.w"})", "a.w: would be called b.w, as b.w is"},
      {R"({"nothing.*": "x.*"})", "'nothing.*' matches no tensor"},
      {R"({"a": "b", "a": "c"})", "a"},
  };
  for (const Row& row : rows) {
    const test::TempFile rules(row.rules);
    Catalog catalog = catalog_of({"b.w", "a.w"});
    CHECK_THROWS_WITH_AS(rename(catalog, rules.path),
                         doctest::Contains(row.why), Error);
  }
}

}  // namespace ckpt::library
