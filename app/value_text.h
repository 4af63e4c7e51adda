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

}  // namespace ckpt::app
