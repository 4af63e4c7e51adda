// SPDX-License-Identifier: Apache-2.0
// Any bytes as JSON: whatever we accept, nlohmann's own parser accepts and
// reads the same. Whatever only it accepts, we refuse by one of our own rules.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "ckpt/error.h"
#include "lib/text/json.h"

namespace {

using Json = nlohmann::json;

void require(bool holds) {
  if (!holds) std::abort();
}

// Deliberately stricter than nlohmann; a NUL ends its input.
bool own_rule(std::string_view problem, std::string_view text) {
  return text.find('\0') != text.npos ||
         problem.find("given twice") != problem.npos ||
         problem.find("nested deeper") != problem.npos ||
         problem.find("byte order mark") != problem.npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Json theirs = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    const Json ours = ckpt::text::parse_json(text, "fuzz");
    require(!theirs.is_discarded());
    require(ours == theirs && ours.dump() == theirs.dump());
  } catch (const ckpt::Error& error) {
    require(theirs.is_discarded() || own_rule(error.problem(), text));
  }
  return 0;
}
