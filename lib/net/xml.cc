// SPDX-License-Identifier: Apache-2.0
#include "lib/net/xml.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace ckpt::net {
namespace {

std::string unescape(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, char>, 9> kEntities = {
      {{"&lt;", '<'},
       {"&gt;", '>'},
       {"&quot;", '"'},
       {"&apos;", '\''},
       {"&#34;", '"'},
       {"&#39;", '\''},
       {"&#x22;", '"'},
       {"&#x27;", '\''},
       {"&amp;", '&'}}};
  std::string out;
  while (!text.empty()) {
    bool found = false;
    for (const auto& [entity, c] : kEntities)
      if (text.starts_with(entity)) {
        out += c;
        text.remove_prefix(entity.size());
        found = true;
        break;
      }
    if (found) continue;
    out += text[0];
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

std::vector<std::string_view> elements(std::string_view xml,
                                       std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const std::string close = fmt::format("</{}>", name);
  std::vector<std::string_view> found;
  while (true) {
    const size_t begin = xml.find(open);
    if (begin == xml.npos) return found;
    xml.remove_prefix(begin + open.size());
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
