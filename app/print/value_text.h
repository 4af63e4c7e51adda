// SPDX-License-Identifier: Apache-2.0
// The canonical JSON of an object, as people (and Python) write it:
//
//   {"betas": {"!tuple": [{"!float": "0.9"}, …]}}   ->   {betas: (0.9, …)}
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ckpt::app {

// On one line and escaped for a terminal. Stops soon after `length` bytes:
// the caller cuts what is too long for its place.
std::string value_text(const nlohmann::ordered_json& value, size_t length);

// As YAML, with a newline at its end: what is a mapping, a list or a scalar in
// Python is one here; of other classes name and arguments are shown.
std::string yaml_text(const nlohmann::ordered_json& value);

}  // namespace ckpt::app
