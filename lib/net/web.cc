// SPDX-License-Identifier: Apache-2.0
// https:// (and http:// on this machine): files by ranges. A directory ends
// with a slash and answers with a page of links, as nginx, Apache and Python's
// http.server do.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/text/number.h"
#include "lib/text/words.h"

namespace ckpt::net {
namespace {

// A directory as a web server shows it: a page of links.

struct ListingPage {
  // Of what is in the directory, sorted, each once; without slashes.
  std::vector<std::string> names;
  // What it doesn't name is not there: a server made it from the directory. A
  // page that somebody wrote may link to some of the files.
  bool is_listing = false;
};

constexpr std::string_view kSpace = " \t\r\n\f";

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
  if (text::lower(tag.substr(0, end)) != wanted) return {};
  tag.remove_prefix(end);
  while (tag.find_first_not_of(kSpace) != tag.npos) {
    std::string_view name;
    const std::string_view value = take_attribute(tag, name);
    if (text::lower(name) == "href") return unescape(value);
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
  if (text::lower(to.authority) != text::lower(parse_url(base).authority))
    return {};
  std::string path = decode(to.path);
  for (size_t at; (at = path.find("/./")) != path.npos;) path.erase(at, 2);
  return path;
}

// `url` is the page's own, to which its links are relative.
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
  const std::string head = text::lower(html.substr(0, kHead));
  for (const char* title : {"index of", "directory listing"})
    page.is_listing |= head.find(title) != head.npos;
  return page;
}

// Of these a header is read next; of others a few bytes, to see what they are.
uint64_t first_bytes(const std::string& path) {
  return path.ends_with(".safetensors") || path.ends_with(".json") ? 64 << 10
                                                                   : 4 << 10;
}

// A page without a length ends wherever the connection does: a truncated list
// would be a checkpoint with fewer files.
void check_whole(const std::string& path, const Response& page) {
  if (!page.header("content-length").empty() ||
      !page.header("transfer-encoding").empty() ||
      page.body.find("</html") != page.body.npos ||
      page.body.find("</HTML") != page.body.npos)
    return;
  throw Error(ExitCode::kIo, {path, {}},
              "the page that lists it came without a length and does not end: "
              "it may have been cut",
              "run it again; if that stays so, name the files, not their "
              "directory");
}

bool is_of_directory(const Response& response) {
  return parse_url(response.url).path.ends_with('/') &&
         response.header("content-type").starts_with("text/html");
}

// Files that readers look for have an ending, nearly all of them.
bool may_be_directory(const std::string& path) {
  return last_name(path).find('.') == std::string::npos;
}

// A directory may have an answer of its own to its name without a slash: none
// (rclone's server) or a page (aiohttp's).
bool hides_listing(const Response& response) {
  return response.status == 404 ||
         ((response.status == 200 || response.status == 206) &&
          response.header("content-type").starts_with("text/html"));
}

bool is_page(const std::string& path, const Response& response) {
  if (response.status != 200 || !is_of_directory(response)) return false;
  check_whole(path, response);
  return true;
}

class WebStore final : public Store {
 public:
  std::optional<Facts> look(const std::string& path) override {
    if (is_absent(path)) return std::nullopt;
    std::string head(first_bytes(path), '\0');
    return look_at(path, head);
  }

  std::optional<Facts> look_again(const std::string& path) override {
    std::string head(1, '\0');
    auto facts = look_at(path, head);
    if (facts) facts->head.clear();
    return facts;
  }

  std::optional<std::vector<std::string>> list(
      const std::string& path) override {
    auto page = first_list(path);
    if (!page) return std::nullopt;
    add_hidden(path, page->names);
    const std::lock_guard lock(mutex_);
    listed_[path] = *page;
    return page->names;
  }

  void forget() override {
    const std::lock_guard lock(mutex_);
    listed_.clear();
    files_.clear();
  }

  Request request(const std::string& path) override {
    check_scheme(path, path);
    Request made;
    made.path = path;
    made.url = encoded(path);
    if (const auto secrets = secrets_of(path)) {
      made.user_password = decode(secrets->userinfo);
      if (!secrets->query.empty()) made.url += "?" + secrets->query;
    }
    return made;
  }

 private:
  // What was typed may be encoded; a name of a listing is not, even if it looks
  // like that ("%41").
  std::string encoded(const std::string& path) {
    if (path.find('%') == path.npos) return encode_rest(path);
    const std::lock_guard lock(mutex_);
    std::string at = parse_url(path).origin();
    std::string out = at;
    std::string_view rest = std::string_view(path).substr(at.size());
    while (!rest.empty()) {
      rest.remove_prefix(1);  // the slash
      const std::string name(rest.substr(0, rest.find('/')));
      const auto found = listed_.find(at);
      const bool raw = found != listed_.end() &&
                       std::ranges::binary_search(found->second.names, name);
      out += '/' + (raw ? encode(name) : encode_rest(name));
      at += '/' + name;
      rest.remove_prefix(name.size());
    }
    return out;
  }

  // As the first look found it: if a server that listed it a moment ago refuses
  // now, it would be a directory that can't be listed.
  std::optional<ListingPage> first_list(const std::string& path) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = listed_.find(path); found != listed_.end())
        return found->second;
    }
    Request asked = request(path);
    if (!asked.url.ends_with('/')) asked.url += '/';
    const Response response = fetch(asked);
    if (!is_page(path, response)) return std::nullopt;
    return read_page(response.body, response.url);
  }

  // What nginx does not list, and every distributed checkpoint has.
  void add_hidden(const std::string& path, std::vector<std::string>& names) {
    const std::string index = ".metadata";
    if (std::ranges::find(names, index) == names.end() &&
        std::ranges::any_of(names,
                            [](const std::string& name) {
                              return name.ends_with(".distcp");
                            }) &&
        look(path + "/" + index))
      names.insert(std::ranges::lower_bound(names, index), index);
  }

  // True if it is not in the listing of its directory (which may hide names
  // that begin with a dot), is below a file, or is beside one with a signature
  // of its own, with which nothing else can be requested.
  bool is_absent(const std::string& path) {
    const std::string folder = folder_of(path);
    if (parse_url(path).path.empty()) return false;
    if (!secrets_of(path) && (secrets_of(folder) || has_secrets_beside(path)))
      return true;
    const std::lock_guard lock(mutex_);
    for (std::string above = folder;
         above.size() > parse_url(path).origin().size();
         above = folder_of(above))
      if (files_.contains(above)) return true;
    // No listing above it has what it lies in.
    for (std::string in = folder;
         in.size() > parse_url(path).origin().size();) {
      const std::string name = last_name(in);
      in = folder_of(in);
      if (is_left_out(in, name)) return true;
    }
    return is_left_out(folder, last_name(path));
  }

  // With the mutex held. A URL that was typed has its names encoded; those of a
  // listing are not.
  bool is_named(const std::string& folder, const std::string& name) const {
    const auto found = listed_.find(folder);
    if (found == listed_.end()) return false;
    const std::vector<std::string>& names = found->second.names;
    return std::ranges::binary_search(names, name) ||
           std::ranges::binary_search(names, decode(name));
  }
  bool is_left_out(const std::string& folder, const std::string& name) const {
    const auto found = listed_.find(folder);
    return found != listed_.end() && found->second.is_listing &&
           !name.starts_with('.') && !is_named(folder, name);
  }

  bool is_listed(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return is_named(folder_of(path), last_name(path));
  }
  bool has_file_beside(const std::string& path) {
    const std::string folder = folder_of(path) + "/";
    const std::lock_guard lock(mutex_);
    const auto found = files_.lower_bound(folder);
    return found != files_.end() && found->starts_with(folder);
  }

  // A whole body that nothing says the end of may have been cut, and so may one
  // of no bytes: then the server is asked how long the file is.
  void check_length(const std::string& path, const Response& came) {
    const uint64_t got = came.body.size();
    const bool ends = came.frames || !came.header("content-length").empty() ||
                      !came.header("transfer-encoding").empty();
    if (ends && got != 0) return;
    Request asked = request(path);
    asked.head = true;
    const Response told = fetch(asked);
    const auto length = text::number(told.header("content-length"));
    const bool good = told.status == 200 && length;
    if (good ? *length == got : ends) return;
    throw Error(
        ExitCode::kIo, {path, {}},
        good ? fmt::format("the server sent {} bytes of {}", got, *length)
             : "came without a length, and the server names none: it may have "
               "been cut",
        "run it again; if that stays so, download the file by another program "
        "and open the copy");
  }

  std::optional<Facts> look_at(const std::string& path, std::string& head) {
    Request asked = request(path);
    asked.into = std::as_writable_bytes(std::span(head));
    asked.first_look = true;
    Response response = fetch(asked);
    // Apache and lighttpd send a range of a listing, too. An empty file has no
    // first byte; not every server says that this is why.
    const bool empty = response.status == 416 &&
                       response.header("content-range") == "bytes */0";
    if ((response.status == 206 && is_of_directory(response)) ||
        (response.status == 416 && !empty)) {
      asked.into = {};
      response = fetch(asked);
    }
    Facts facts;
    if (is_page(path, response)) {
      facts.directory = true;
      ListingPage page = read_page(response.body, response.url);
      const std::lock_guard lock(mutex_);
      listed_[path] = std::move(page);
      return facts;
    }
    if (may_be_directory(path) && hides_listing(response))
      if (auto listing = listed(path)) return listing;
    if (response.status == 404 || response.status == 410) return std::nullopt;
    if (is_forbidden(response) && !is_listed(path)) {
      const bool beside = has_file_beside(path);
      if (beside && settings().forbidden_is_absent) return std::nullopt;
      if (beside) throw forbidden_beside(asked, response);
    }
    if (!empty) check_status(asked, response);
    if (response.status == 206) {
      facts.size = response.total.value_or(0);
      head.resize(response.got);
      facts.head = head;
    } else if (response.left) {
      facts.ranges = false;
      facts.size = text::number(response.header("content-length")).value_or(0);
    } else if (!empty) {
      facts.ranges = false;
      check_length(path, response);
      facts.size = response.body.size();
      facts.head = response.body;
    }
    facts.version = {response.header("etag"), response.header("last-modified"),
                     facts.size, parse_url(response.url).origin()};
    if (!facts.version.etag.empty() || !facts.version.last_modified.empty())
      facts.tag = facts.version.etag + "\n" + facts.version.last_modified;
    const std::lock_guard lock(mutex_);
    files_.insert(path);
    return facts;
  }

  // What a directory's name with a slash leads to.
  std::optional<Facts> listed(const std::string& path) {
    auto page = first_list(path);
    if (!page) return std::nullopt;
    const std::lock_guard lock(mutex_);
    listed_[path] = std::move(*page);
    Facts facts;
    facts.directory = true;
    return facts;
  }

  std::mutex mutex_;
  std::map<std::string, ListingPage> listed_;
  std::set<std::string> files_;
};

}  // namespace

std::unique_ptr<Store> make_web_store() { return std::make_unique<WebStore>(); }

}  // namespace ckpt::net
