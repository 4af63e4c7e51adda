// SPDX-License-Identifier: Apache-2.0
#include "lib/net/url.h"

#include <cctype>

namespace ckpt::net {
namespace {

void append_hex(std::string& text, unsigned char c) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  text += '%';
  text += kDigits[c >> 4];
  text += kDigits[c & 15];
}

bool is_unreserved(unsigned char c) {
  return (c < 128 && std::isalnum(c)) || c == '-' || c == '.' || c == '_' ||
         c == '~';
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_escape(std::string_view text, size_t at) {
  return text[at] == '%' && at + 2 < text.size() &&
         hex_value(text[at + 1]) >= 0 && hex_value(text[at + 2]) >= 0;
}

// The position of "://" after a scheme; npos if the text doesn't begin with
// one: "/login?next=https://host" has no scheme.
size_t scheme_end(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == text.npos || colon == 0) return text.npos;
  for (const char c : text.substr(0, colon))
    if (c != '+' && c != '-' && c != '.' &&
        !(static_cast<unsigned char>(c) < 128 &&
          std::isalnum(static_cast<unsigned char>(c))))
      return text.npos;
  return colon;
}

}  // namespace

Url parse_url(std::string_view text) {
  Url url;
  text = text.substr(0, text.find('#'));
  const size_t colon = scheme_end(text);
  if (colon == text.npos) {
    url.path = std::string(text);
    return url;
  }
  url.scheme = std::string(text.substr(0, colon));
  text.remove_prefix(colon + 3);
  if (const size_t mark = text.find('?'); mark != text.npos) {
    url.query = std::string(text.substr(mark + 1));
    text = text.substr(0, mark);
  }
  const size_t slash = text.find('/');
  std::string_view authority = text.substr(0, slash);
  if (slash != text.npos) url.path = std::string(text.substr(slash));
  // hf://ORG/NAME@REV has no user.
  if (const size_t at = authority.rfind('@'); at != authority.npos) {
    url.userinfo = std::string(authority.substr(0, at));
    authority.remove_prefix(at + 1);
  }
  url.authority = std::string(authority);
  return url;
}

std::string encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (is_unreserved(static_cast<unsigned char>(c)))
      out += c;
    else
      append_hex(out, static_cast<unsigned char>(c));
  }
  return out;
}

std::string encode_path(std::string_view path) {
  std::string out;
  while (true) {
    const size_t slash = path.find('/');
    out += encode(path.substr(0, slash));
    if (slash == path.npos) return out;
    out += '/';
    path.remove_prefix(slash + 1);
  }
}

namespace {

std::string encode_of(std::string_view text, std::string_view never) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c <= ' ' || c >= 127 || never.find(text[i]) != never.npos ||
        (c == '%' && !is_escape(text, i)))
      append_hex(out, c);
    else
      out += text[i];
  }
  return out;
}

}  // namespace

std::string encode_rest(std::string_view path) {
  return encode_of(path, "\"<>\\^`{|}?#");
}

std::string encode_reference(std::string_view url) {
  return encode_of(url, "\"<>\\^`{|}");
}

std::string decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_escape(text, i)) {
      out += text[i];
      continue;
    }
    out +=
        static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
    i += 2;
  }
  return out;
}

bool is_loopback(std::string_view authority) {
  if (authority.starts_with("[::1]")) return true;
  const std::string_view host = authority.substr(0, authority.find(':'));
  if (host == "localhost") return true;
  return host.starts_with("127.") &&
         host.find_first_not_of("0123456789.") == host.npos;
}

std::string normal(std::string_view url) {
  const size_t begin = url.find("://") + 3;
  std::string out(url.substr(0, begin));
  for (const char c : url.substr(begin))
    if (c != '/' || !out.ends_with('/')) out += c;
  while (out.size() > begin && out.ends_with('/')) out.pop_back();
  // libcurl sends "a/../b" as "b", so that must be signed, too. The first
  // component, a host or a bucket, stays. None of the hub's files has dot
  // components, and what is above a repository is another one.
  if (url.starts_with("hf://")) return out;
  // "." first: what is before ".." is a name then.
  for (size_t at; (at = out.find("/./", begin)) != out.npos ||
                  (out.ends_with("/.") && (at = out.size() - 2) >= begin);)
    out.erase(at, 2);
  for (size_t at; (at = out.find("/../", begin)) != out.npos ||
                  (out.ends_with("/..") && (at = out.size() - 3) >= begin);) {
    const size_t above = out.rfind('/', at - 1);
    const bool first = at == 0 || above == out.npos || above < begin;
    const size_t from = first ? at : above;
    out.erase(from, at + 3 - from);
  }
  return out;
}

std::string resolve_reference(const std::string& base,
                              std::string_view location) {
  if (scheme_end(location) != location.npos) return std::string(location);
  const Url url = parse_url(base);
  if (location.starts_with("//"))
    return url.scheme + ":" + std::string(location);
  if (location.starts_with('/')) return url.origin() + std::string(location);
  return url.origin() + url.path.substr(0, url.path.rfind('/') + 1) +
         std::string(location);
}

}  // namespace ckpt::net
