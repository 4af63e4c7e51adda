// SPDX-License-Identifier: Apache-2.0
// https:// (and http:// on this machine): files by ranges. A directory ends
// with a slash and answers with a page of links, as nginx, Apache and Python's
// http.server do.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lib/net/page.h"
#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/url.h"
#include "lib/text/number.h"

namespace ckpt::net {
namespace {

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
