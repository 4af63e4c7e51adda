// SPDX-License-Identifier: Apache-2.0
// The goldens' object trees, against an independent reader's view of them.
#include <doctest/doctest.h>

#include <fstream>

#include "lib/pickle/json.h"
#include "tests/support/pickles.h"

namespace ckpt::pickle {
namespace {

using test::data_path;
using test::decode_text;
using test::pickle_of;

nlohmann::json load_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// Whether the peer named its tensors, or left the names null.
bool has_names(const nlohmann::json& value) {
  return value.dump().find("\"!tensor\":\"") != std::string::npos;
}

// The first place where two values differ.
std::string difference(const nlohmann::json& got, const nlohmann::json& want) {
  const auto patch = nlohmann::json::diff(want, got);
  return patch.empty() ? "" : patch[0].dump().substr(0, 2000);
}

}  // namespace

TEST_CASE("pickle json: as the goldens' independent reader") {
  const char* cases[] = {
      "torch_pt/container_variants",
      "torch_pt/dtensor_per_rank",
      "torch_pt/dtypes",
      "torch_pt/special_tensors",
      "torch_pt/training_objects",
      "torch_pt/views",
      "torch_pt/whole_module",
      "torch_legacy/basic",
      "torch_legacy/py2_old_torch",
  };
  const NameTensor path = [](Id, const std::string& name) { return name; };
  for (const std::string name : cases) {
    const auto expected = load_json(data_path(name + "/expected_objects.json"));
    for (const auto& [key, want] : expected.items()) {
      const std::string file = key;
      CAPTURE(name);
      CAPTURE(file);
      const std::string bytes = pickle_of(data_path(name + "/ckpt/" + file));
      const Decoded decoded = decode_text(bytes);
      const Document& document = *decoded.document;
      const nlohmann::json got = to_json(document, document.root(), 100'000,
                                         has_names(want) ? path : NameTensor());
      CHECK(difference(got, want) == "");
    }
  }
}

}  // namespace ckpt::pickle
