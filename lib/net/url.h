// SPDX-License-Identifier: Apache-2.0
// URLs, their parts, and which of them may be shown.
//
//   https://user:pass@host:8443/a/b.safetensors?sig=abc
//   scheme  userinfo  authority path             query
#pragma once

#include <string>
#include <string_view>

namespace ckpt::net {

struct Url {
  std::string scheme;
  std::string userinfo;   // a secret
  std::string authority;  // host and port
  std::string path;       // from the slash on; may be empty
  std::string query;      // without "?"; a secret

  // "https://host:8443": where a secret may be sent.
  std::string origin() const { return scheme + "://" + authority; }
  // Without user, password and query.
  std::string shown() const { return origin() + path; }
  std::string whole() const {
    return shown() + (query.empty() ? "" : "?" + query);
  }
};

// Parses anything: missing parts are empty, and without a scheme everything is
// path. Fragments are dropped.
Url parse_url(std::string_view text);

// RFC 3986: all but unreserved characters become %XX; in a path, slashes stay.
std::string encode(std::string_view text);
std::string encode_path(std::string_view path);
// Encodes only what no URL can hold: spaces, controls, quotes, bytes above 127,
// and ?#.
std::string encode_rest(std::string_view path);
// The same for a whole URL, whose query stays one: servers redirect to names as
// they are.
std::string encode_reference(std::string_view url);
std::string decode(std::string_view text);

// 127.0.0.0/8, ::1, localhost.
bool is_loopback(std::string_view authority);

// Without double and final slashes: "s3://b//x/" is "s3://b/x".
std::string normal(std::string_view url);

// What a Location header means.
std::string resolve_reference(const std::string& base,
                              std::string_view location);

}  // namespace ckpt::net
