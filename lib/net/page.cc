// SPDX-License-Identifier: Apache-2.0
#include "lib/net/page.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "lib/net/url.h"
#include "lib/net/xml.h"

namespace ckpt::net {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f";

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return out;
}

// The tags of a page, without what is in comments.
std::vector<std::string_view> tags(std::string_view html) {
  std::vector<std::string_view> all;
  while (true) {
    const size_t at = html.find('<');
    if (at == html.npos) return all;
    html.remove_prefix(at);
    const bool comment = html.starts_with("<!--");
    const size_t end = html.find(comment ? "-->" : ">");
    if (end == html.npos) return all;
    if (!comment) all.push_back(html.substr(1, end - 1));
    html.remove_prefix(end + 1);
  }
}

// Takes `name`, `name=value`, `name="value"` or `name='value'` off the front.
std::string_view take_attribute(std::string_view& rest,
                                std::string_view& name) {
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  const size_t end = std::min(rest.find_first_of(" \t\r\n\f="), rest.size());
  name = rest.substr(0, end);
  rest.remove_prefix(end);
  const size_t sign = rest.find_first_not_of(kSpace);
  if (sign == rest.npos || rest[sign] != '=') return {};
  rest.remove_prefix(sign + 1);
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  if (rest.empty()) return {};
  const bool quoted = rest[0] == '"' || rest[0] == '\'';
  const size_t begin = quoted ? 1 : 0;
  const size_t stop = std::min(
      quoted ? rest.find(rest[0], 1) : rest.find_first_of(kSpace), rest.size());
  const std::string_view value = rest.substr(begin, stop - begin);
  rest.remove_prefix(std::min(stop + begin, rest.size()));
  return value;
}

// The value of href, if it is a tag of that name: "a", "base".
std::string link_of(std::string_view tag, std::string_view wanted) {
  const size_t end = std::min(tag.find_first_of(kSpace), tag.size());
  if (lower_case(tag.substr(0, end)) != wanted) return {};
  tag.remove_prefix(end);
  while (tag.find_first_not_of(kSpace) != tag.npos) {
    std::string_view name;
    const std::string_view value = take_attribute(tag, name);
    if (lower_case(name) == "href") return unescape(value);
  }
  return {};
}

// "mailto:x", "javascript:x"
bool is_of_other_kind(std::string_view link) {
  const size_t colon = link.find(':');
  return colon < link.find_first_of("/?#");
}

// The path that a link means, decoded; "" if it is on another host.
std::string linked_path(std::string_view link, const std::string& base) {
  link = link.substr(0, link.find_first_of("?#"));
  const bool absolute =
      link.starts_with("http://") || link.starts_with("https://");
  if (link.empty() || (!absolute && is_of_other_kind(link))) return {};
  const Url to = parse_url(resolve_reference(base, link));
  if (lower_case(to.authority) != lower_case(parse_url(base).authority))
    return {};
  std::string path = decode(to.path);
  for (size_t at; (at = path.find("/./")) != path.npos;) path.erase(at, 2);
  return path;
}

}  // namespace

ListingPage read_page(std::string_view html, const std::string& url) {
  ListingPage page;
  const std::string folder = decode(parse_url(url).path);  // ends with a slash
  const std::string above =
      folder.size() < 2
          ? folder
          : folder.substr(0, folder.rfind('/', folder.size() - 2) + 1);
  std::string base = url;
  std::set<std::string> names;
  for (const std::string_view tag : tags(html)) {
    if (const std::string link = link_of(tag, "base"); !link.empty())
      base = resolve_reference(url, link);
    const std::string link = link_of(tag, "a");
    if (link == "../" || link == "..") page.is_listing = true;
    std::string path = linked_path(link, base);
    if (path == above) page.is_listing = true;
    if (!path.starts_with(folder)) continue;
    path.erase(0, folder.size());
    if (path.ends_with('/')) path.pop_back();
    if (!path.empty() && path != "." && path != ".." &&
        path.find('/') == path.npos && path.find('\0') == path.npos)
      names.insert(std::move(path));
  }
  page.names = {names.begin(), names.end()};
  constexpr size_t kHead = 4096;
  const std::string head = lower_case(html.substr(0, kHead));
  for (const char* title : {"index of", "directory listing"})
    page.is_listing |= head.find(title) != head.npos;
  return page;
}

}  // namespace ckpt::net
