// SPDX-License-Identifier: Apache-2.0
// The head of an HTTP request that a browser sends to this machine.
//
//   GET /path?query HTTP/1.1\r\n
//   Host: 127.0.0.1:8080\r\n
//   …\r\n
//   \r\n
//
// Strict: what a browser never sends is not a request. So nothing that two
// readers could understand differently gets further.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ckpt::serve {

inline constexpr size_t kMostHead = 8192;  // bytes

struct Request {
  std::string method;
  std::string path;   // from the slash on, as sent
  std::string query;  // after "?", as sent
  std::string host;   // of the Host header
};

// Parses everything up to and including the empty line. Returns 0, or the
// status that refuses it: 400, 405 if it would change something, 505.
int parse_request(std::string_view head, Request& request);

// "a=1&b=x%20y": the value of `name`, decoded; "" if absent. A plus stays a
// plus, as with encodeURIComponent.
std::string query_value(std::string_view query, std::string_view name);

// Takes the same time whichever bytes differ.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace ckpt::serve
