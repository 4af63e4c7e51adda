// SPDX-License-Identifier: Apache-2.0
#include "lib/net/request.h"

#include <algorithm>

#include "lib/net/url.h"
#include "lib/text/words.h"

namespace ckpt::serve {
namespace {

constexpr int kBad = 400, kMethod = 405, kHttpVersion = 505;

bool is_graphic(char c) { return c > ' ' && c < 0x7F; }

bool is_field_char(char c) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z') || kMarks.find(c) != kMarks.npos;
}

bool is_field_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_field_char);
}

bool same_name(std::string_view name, std::string_view lower) {
  return std::ranges::equal(name, lower, [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a + 32) : a) == b;
  });
}

int parse_first_line(std::string_view line, Request& request) {
  const size_t space = line.find(' ');
  if (space == line.npos) return kBad;
  const std::string_view method = line.substr(0, space);
  line.remove_prefix(space + 1);
  const size_t end = line.find(' ');
  if (end == line.npos || !is_field_name(method)) return kBad;
  const std::string_view target = line.substr(0, end);
  const std::string_view version = line.substr(end + 1);
  if (!target.starts_with('/') || !std::ranges::all_of(target, is_graphic))
    return kBad;
  if (!version.starts_with("HTTP/")) return kBad;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return kHttpVersion;
  const size_t mark = target.find('?');
  request.method = method;
  request.path = target.substr(0, mark);
  if (mark != target.npos) request.query = target.substr(mark + 1);
  return 0;
}

struct Seen {
  int hosts = 0;
  bool body = false;
};

int parse_field(std::string_view line, Request& request, Seen& seen) {
  const size_t colon = line.find(':');
  if (colon == line.npos || !is_field_name(line.substr(0, colon))) return kBad;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = text::trimmed(line.substr(colon + 1), " \t");
  const auto control = [](char c) {
    return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7F;
  };
  if (std::ranges::any_of(value, control)) return kBad;
  if (same_name(name, "host")) {
    ++seen.hosts;
    request.host = value;
  }
  // Requests have no body here: it would be read as the next request.
  if (same_name(name, "transfer-encoding") ||
      (same_name(name, "content-length") && value != "0"))
    seen.body = true;
  return 0;
}

}  // namespace

int parse_request(std::string_view head, Request& request) {
  Seen seen;
  bool first = true;
  for (;;) {
    const size_t end = head.find("\r\n");
    if (end == head.npos) return kBad;
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (line.empty()) break;
    const int status = first ? parse_first_line(line, request)
                             : parse_field(line, request, seen);
    if (status != 0) return status;
    first = false;
  }
  if (first || seen.hosts != 1) return kBad;
  if (request.method != "GET" && request.method != "HEAD") return kMethod;
  return seen.body ? kBad : 0;
}

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    const size_t sign = pair.find('=');
    if (sign != pair.npos && pair.substr(0, sign) == name)
      return net::decode(pair.substr(sign + 1));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
  }
  return {};
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;  // its length is not a secret
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differ |= static_cast<unsigned char>(a[i]) ^
              static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  return differ == 0;
}

}  // namespace ckpt::serve
