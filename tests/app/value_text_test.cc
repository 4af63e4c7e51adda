// SPDX-License-Identifier: Apache-2.0
#include "app/print/value_text.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace ckpt::app {

TEST_CASE("value text: canonical JSON as people write it") {
  struct Row {
    const char* json;
    const char* text;
  };
  const Row rows[] = {
      {"null", "None"},
      {"true", "True"},
      {"-3", "-3"},
      {R"("a\nb")", R"("a\nb")"},
      {R"([1,[],{}])", "[1, [], {}]"},
      {R"({"lr":{"!float":"0.001"},"n":null})", "{lr: 0.001, n: None}"},
      {R"({"!tuple":[{"!float":"0.9"},{"!int":"99999999999999999999"}]})",
       "(0.9, 99999999999999999999)"},
      {R"({"!dict":[[0,"a"],[{"!tuple":[1,2]},3]]})", R"({0: "a", (1, 2): 3})"},
      {R"({"!OrderedDict":[],"attrs":{}})", "{}"},
      {R"({"!set":[1,2]})", "{1, 2}"},
      {R"({"!bytes":"00ff"})", "0x00ff"},
      {R"({"!bytes":"00ff","size":5000})", "0x00ff… (5000 bytes)"},
      {R"({"!bytes":""})", "b''"},
      {R"({"!dtype":"bfloat16"})", "bfloat16"},
      {R"({"!global":"torch.nn Linear"})", "torch.nn.Linear"},
      {R"({"!tensor":null,"dtype":"float32","size":[2,3],"stride":[3,1]})",
       "tensor(float32 [2, 3])"},
      {R"({"!ndarray":"<f4","shape":[3],"hex":"00"})", "ndarray(<f4 [3])"},
      {R"({"!np_scalar":"<f4","value":{"!float":"1.25"}})", "1.25"},
      {R"({"!object":"argparse Namespace","how":"newobj","args":{"!tuple":[]},)"
       R"("state":{"lr":1}})",
       "argparse.Namespace() {lr: 1}"},
      {R"({"!object":"collections defaultdict","how":"reduce",)"
       R"("args":{"!tuple":[{"!global":"builtins list"}]},"pairs":[["k",1]]})",
       R"(collections.defaultdict(builtins.list) {"k": 1})"},
      {R"([1,{"!ref":""},{"!elided":9}])", "[1, <above>, …]"},
      // What canonical JSON never holds still gives some text.
      {R"({"!tuple":5})", "(5)"},
      {R"({"!dict":[1,[2]]})", "{}"},
      {R"({"!object":7})", "object()"},
      {R"({"!complex":[1]})", "[1]"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    CHECK(value_text(nlohmann::ordered_json::parse(row.json), 1000) ==
          row.text);
  }
}

TEST_CASE("value text: hostile names are escaped, long values stop") {
  nlohmann::ordered_json evil;
  evil["a\x1b[31m\n"] = {{"!global", "m\x07 n"}};
  CHECK(value_text(evil, 1000) == R"({a\x1b[31m\x0a: m\x07.n})");
  const nlohmann::ordered_json list(std::vector<int>(1'000'000, 7));
  CHECK(value_text(list, 100).size() < 110);
}

}  // namespace ckpt::app
