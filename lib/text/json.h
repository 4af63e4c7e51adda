// SPDX-License-Identifier: Apache-2.0
// JSON documents, read strictly: duplicate keys, trailing bytes, a BOM,
// comments, nesting deeper than 128 and bad UTF-8 are errors that name the
// file and the byte.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lib/text/scan.h"

namespace ckpt::text {

// Throws input_error naming `path`; resource_error for a text whose values
// would take too much memory (lib/tree_memory.h).
nlohmann::json parse_json(std::string_view text, const std::string& path);

// The same, but NaN, Infinity and -Infinity are numbers: Python's json module
// writes them, so some config.json files have them.
nlohmann::json parse_python_json(std::string_view text,
                                 const std::string& path);

// Reads the next number. Integers that don't fit 64 bits become floating-point
// numbers.
nlohmann::json number_of(Scanner& scan);

// Typed access with errors that name the key: "weight_map: expected an
// object, found an array (in …)".
const nlohmann::json& member(const nlohmann::json& object,
                             const std::string& key, const std::string& path);
std::string string_member(const nlohmann::json& object, const std::string& key,
                          const std::string& path);
uint64_t uint_member(const nlohmann::json& object, const std::string& key,
                     const std::string& path);

}  // namespace ckpt::text
