// SPDX-License-Identifier: Apache-2.0
// The canonical JSON of an object, written as people (and Python) write it:
//
//   {"betas": {"!tuple": [{"!float": "0.9"}, …]}}   ->   {betas: (0.9, …)}
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ckpt::app {

// On one line and escaped for a terminal. Stops soon after `length` bytes; the
// caller cuts the rest.
std::string value_text(const nlohmann::ordered_json& value, size_t length);

// As YAML, ending in a newline: Python's mappings, lists and scalars stay what
// they are; other classes show their name and arguments.
std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace ckpt::app
