// SPDX-License-Identifier: Apache-2.0
#include "lib/net/xml.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <system_error>
#include <utility>

namespace ckpt::net {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities = {
    {{"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}, {"amp", '&'}}};

void append_utf8(std::string& out, uint32_t code) {
  const auto add = [&](uint32_t byte) { out += static_cast<char>(byte); };
  const auto rest = [&](int shift) { add(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | (code >> 6));
  } else if (code < 0x10000) {
    add(0xe0 | (code >> 12));
    rest(6);
  } else {
    add(0xf0 | (code >> 18));
    rest(12);
    rest(6);
  }
  rest(0);
}

// "lt", "#34", "#x22"; false if it is none.
bool append_entity(std::string& out, std::string_view name) {
  for (const auto& [entity, c] : kEntities)
    if (name == entity) {
      out += c;
      return true;
    }
  if (!name.starts_with('#')) return false;
  const bool hex = name.starts_with("#x");
  name.remove_prefix(hex ? 2 : 1);
  uint32_t code = 0;
  const auto [end, failed] = std::from_chars(
      name.data(), name.data() + name.size(), code, hex ? 16 : 10);
  if (failed != std::errc() || end != name.data() + name.size() ||
      code > 0x10ffff)
    return false;
  append_utf8(out, code);
  return true;
}

}  // namespace

std::string unescape(std::string_view text) {
  constexpr size_t kLongest = 10;  // of an entity
  std::string out;
  while (!text.empty()) {
    if (text[0] == '&') {
      const size_t end = text.substr(0, kLongest).find(';');
      if (end != text.npos && append_entity(out, text.substr(1, end - 1))) {
        text.remove_prefix(end + 1);
        continue;
      }
    }
    out += text[0];
    text.remove_prefix(1);
  }
  return out;
}

std::vector<std::string_view> elements(std::string_view xml,
                                       std::string_view name) {
  const std::string open = fmt::format("<{}", name);
  const std::string close = fmt::format("</{}>", name);
  std::vector<std::string_view> found;
  while (true) {
    const size_t begin = xml.find(open);
    if (begin == xml.npos) return found;
    xml.remove_prefix(begin + open.size());
    if (xml.empty() || (xml[0] != '>' && xml[0] != ' ')) continue;
    const size_t tag = xml.find('>');
    if (tag == xml.npos) return found;
    const bool alone = tag != 0 && xml[tag - 1] == '/';  // <Name/>
    xml.remove_prefix(tag + 1);
    if (alone) continue;
    const size_t end = xml.find(close);
    if (end == xml.npos) return found;
    found.push_back(xml.substr(0, end));
    xml.remove_prefix(end + close.size());
  }
}

std::string element(std::string_view xml, std::string_view name) {
  const auto all = elements(xml, name);
  return all.empty() ? "" : unescape(all.front());
}

}  // namespace ckpt::net
