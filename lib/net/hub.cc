// SPDX-License-Identifier: Apache-2.0
// hf://ORG/NAME[@REVISION][/PATH], hf://datasets/ORG/NAME…: the Hugging Face
// hub.
//
//   GET /api/models/ORG/NAME/revision/REV            -> {"sha": …}
//   GET /api/models/ORG/NAME/tree/SHA?recursive=true -> files, in pages
//   GET /ORG/NAME/resolve/SHA/PATH                   -> bytes, or where they
//   are
//
// A mirror that has no trees is asked for the names that its revision lists:
//
//   GET /api/models/ORG/NAME/revision/REV?blobs=true -> {"siblings": […]}
//
// What a mirror leaves out of them is found out by the first request for a
// file, and proven less: without a hash, the commit says which version it is.
//
// A revision is resolved to its commit once, so that a push during a run
// changes nothing. Files of that commit that are in the hub's local cache are
// read there.
#include <sys/stat.h>

#include <set>

#include "lib/io/file.h"
#include "lib/net/hub_name.h"
#include "lib/net/listed.h"
#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/url.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::net {
namespace {

std::string home() { return environment("HOME"); }

std::string hub_home() {
  if (std::string set = environment("HF_HOME"); !set.empty()) return set;
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? home() + "/.cache" : cache) + "/huggingface";
}

std::string cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (std::string set = environment(name); !set.empty()) return set;
  return hub_home() + "/hub";
}

std::string first_line(const std::string& path) {
  if (!io::is_file(path)) return {};
  const std::string text = io::read_file(path, 4096);
  return text.substr(0, text.find_first_of(" \r\n"));
}

// As the hub's own client finds it.
std::string token() {
  if (environment("HF_HUB_DISABLE_IMPLICIT_TOKEN") == "1") return {};
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
    if (std::string set = environment(name); !set.empty()) return set;
  const std::string path = environment("HF_TOKEN_PATH");
  const std::string text =
      read_secret(path.empty() ? hub_home() + "/token" : path);
  return text.substr(0, text.find_first_of(" \r\n"));
}

bool is_offline() {
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    const std::string value = environment(name);
    if (value == "1" || value == "true" || value == "TRUE" || value == "ON" ||
        value == "YES")
      return true;
  }
  return false;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 &&
         text.find_first_not_of("0123456789abcdef") == text.npos;
}

// What is in the cache is looked up by these names, and may not be above it.
void check_plain(const std::string& root, const std::string& path) {
  std::string_view rest = path;
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    if (part.empty() || part == "." || part == "..")
      throw input_error({root, {}},
                        "the hub names a file \"{}\", which is not a path in "
                        "the repository",
                        text::printable(path))
          .with_hint("tell the repository's owner; nothing of it is read");
    if (part.size() == rest.size()) return;
    rest.remove_prefix(part.size() + 1);
  }
}

// Files of one commit.
struct Tree {
  HubName name;
  std::string sha;
  std::map<std::string, Facts> files;
  std::set<std::string> folders;  // "" among them
  std::set<std::string> unsized;  // files whose size nothing has told
};

void add_folders(std::string path, Tree& tree) {
  while (true) {
    const size_t slash = path.rfind('/');
    path = slash == path.npos ? "" : path.substr(0, slash);
    if (!tree.folders.insert(path).second || path.empty()) return;
  }
}

class HubStore final : public Store {
 public:
  HubStore() {
    endpoint_ = environment("HF_ENDPOINT");
    if (endpoint_.empty()) endpoint_ = "https://huggingface.co";
    check_endpoint("HF_ENDPOINT", endpoint_);
    while (endpoint_.ends_with('/')) endpoint_.pop_back();
  }

  std::optional<Facts> look(const std::string& path) override {
    const auto name = parse_hub_name(path);
    if (!name) return std::nullopt;
    const Tree* const found = tree(*name);
    if (!found) return std::nullopt;
    if (const auto file = found->files.find(name->path);
        file != found->files.end())
      return found->unsized.contains(name->path) ? measured(path, file->second)
                                                 : file->second;
    if (!found->folders.contains(name->path)) return std::nullopt;
    Facts folder;
    folder.directory = true;
    return folder;
  }

  std::optional<std::vector<std::string>> list(
      const std::string& path) override {
    const auto name = parse_hub_name(path);
    const Tree* const found = name ? tree(*name) : nullptr;
    if (!found || !found->folders.contains(name->path)) return std::nullopt;
    const std::string above = name->path.empty() ? "" : name->path + "/";
    std::set<std::string> names;
    const auto add = [&](const std::string& one) {
      if (!one.starts_with(above) || one.size() == above.size()) return;
      const std::string rest = one.substr(above.size());
      names.insert(rest.substr(0, rest.find('/')));
    };
    for (const auto& [one, facts] : found->files) add(one);
    for (const std::string& one : found->folders) add(one);
    return std::vector<std::string>(names.begin(), names.end());
  }

  // Nobody reads meanwhile. What was found may be another commit by now.
  void forget() override {
    const std::lock_guard lock(tree_mutex_);
    trees_.clear();
    const std::lock_guard others(mutex_);
    places_.clear();
    sizes_.clear();
  }

  Request request(const std::string& path) override {
    const auto name = parse_hub_name(path);
    const Tree* const found = name ? tree(*name) : nullptr;
    if (!found) throw missing_error({path, {}}, "does not exist");
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = places_.find(path);
          known != places_.end() && !known->second.empty())
        return {.path = path, .url = known->second};
    }
    const std::string kind = name->kind == "models" ? "" : name->kind + "/";
    return ask(path, fmt::format("/{}{}/resolve/{}/{}", kind, name->repo,
                                 found->sha, encode_path(name->path)));
  }

  // Otherwise each of the ranges that begin together would be redirected
  // separately.
  void locate(const std::string& path) override {
    const auto facts = look(path);
    if (!facts || facts->sha256.empty() || facts->size == 0) return;
    std::shared_ptr<std::mutex> turn;
    {
      const std::lock_guard lock(mutex_);
      if (places_.contains(path)) return;
      auto& found = turns_[path];
      if (!found) found = std::make_shared<std::mutex>();
      turn = found;
    }
    const std::lock_guard alone(*turn);
    {
      const std::lock_guard lock(mutex_);
      if (places_.contains(path)) return;
    }
    std::byte first;
    Request asked = request(path);
    asked.into = {&first, 1};
    asked.stop_at_other_host = true;
    const Response response = fetch(asked);
    if (parse_url(response.url).origin() == parse_url(endpoint_).origin())
      check_status(asked, response);
    arrived(path, response);
    const std::lock_guard lock(mutex_);
    places_.try_emplace(path);
  }

  // The hub redirects to another host; the next ranges go there directly.
  void arrived(const std::string& path, const Response& response) override {
    const auto linked = response.earlier.find("x-linked-etag");
    if (linked != response.earlier.end()) {
      const auto facts = look(path);
      std::string etag = linked->second;
      std::erase(etag, '"');
      if (facts && etag.size() == 64 && !facts->sha256.empty() &&
          facts->sha256 != etag)
        throw changed_error(path, "the hub names another sha256 for it");
    }
    if (parse_url(response.url).origin() == parse_url(endpoint_).origin())
      return;
    const std::lock_guard lock(mutex_);
    places_.try_emplace(path, response.url);
  }

  // The URL of the redirect is signed for a limited time.
  bool refused(const std::string& path, const Request& asked,
               const Response&) override {
    if (parse_url(asked.url).origin() == parse_url(endpoint_).origin())
      return false;
    const std::lock_guard lock(mutex_);
    const auto known = places_.find(path);
    if (known != places_.end() && known->second == asked.url)
      places_.erase(known);
    return true;
  }

 private:
  Request ask(const std::string& path, const std::string& what) {
    Request made;
    made.path = path;
    made.url = what.starts_with('/') ? endpoint_ + what : what;
    if (const std::string secret = token(); !secret.empty()) {
      check_scheme(made.url, path);
      made.secret_headers.push_back("Authorization: Bearer " + secret);
    }
    return made;
  }

  const Tree* tree(const HubName& name) {
    const std::lock_guard lock(tree_mutex_);
    auto found = trees_.find(name.root);
    if (found == trees_.end())
      found = trees_
                  .emplace(name.root,
                           is_offline() ? cached_tree(name) : hub_tree(name))
                  .first;
    return found->second ? &*found->second : nullptr;
  }

  // Says which part of the name is wrong, where the hub does.
  static void refuse_name(const HubName& name, const Response& response) {
    const std::string code = response.header("x-error-code");
    if (code == "RevisionNotFound")
      throw missing_error({name.root, {}},
                          "the hub has no revision \"{}\" of {} ({})",
                          text::printable(name.revision),
                          text::printable(name.repo), describe(response))
          .with_hint("a branch, a tag or a whole commit; without @ it is main");
    if (code == "RepoNotFound")
      throw missing_error({name.root, {}}, "the hub has no {} ({})",
                          text::printable(name.repo), describe(response))
          .with_hint(
              "look at its spelling; what is private or gated needs HF_TOKEN, "
              "and data sets are hf://datasets/ORG/NAME");
  }

  std::optional<Tree> hub_tree(const HubName& name) {
    const std::string api = fmt::format("/api/{}/{}", name.kind, name.repo);
    const Request asked =
        ask(name.root, api + "/revision/" + encode(name.revision));
    const Response response = fetch(asked);
    if (response.status == 404) refuse_name(name, response);
    if (response.status == 404) return std::nullopt;
    check_status(asked, response);
    Tree tree{.name = name};
    tree.sha = text::string_member(text::parse_json(response.body, name.root),
                                   "sha", name.root);
    if (!is_commit(tree.sha))
      throw input_error({name.root, {}}, "the hub names a commit \"{}\"",
                        tree.sha);
    tree.folders.insert("");
    std::string next = api + "/tree/" + tree.sha + "?recursive=true";
    while (!next.empty()) next = add_page(next, tree);
    if (tree.files.empty()) add_siblings(tree);
    for (auto& [path, facts] : tree.files) {
      const std::string local = snapshot(name, tree.sha) + "/" + path;
      struct stat there;
      if (::stat(local.c_str(), &there) == 0 && S_ISREG(there.st_mode) &&
          (static_cast<uint64_t>(there.st_size) == facts.size ||
           tree.unsized.contains(path)))
        facts.local = local;
    }
    return tree;
  }

  // Returns the next page's URL; "" after the last one. Adds nothing where
  // there is no such page.
  std::string add_page(const std::string& where, Tree& tree) {
    const std::string& root = tree.name.root;
    const Request asked = ask(root, where);
    const Response response = fetch(asked);
    if (response.status == 404 && tree.files.empty()) return {};
    check_status(asked, response);
    const size_t had = tree.files.size() + tree.folders.size();
    for (const auto& entry : text::parse_json(response.body, root)) {
      const std::string path = text::string_member(entry, "path", root);
      const std::string type = text::string_member(entry, "type", root);
      if (type == "file") add_file(path, entry, "oid", tree);
      if (type != "directory") continue;
      check_plain(root, path);
      tree.folders.insert(path);
    }
    check_names(root, tree.files.size() + tree.folders.size());
    const std::string next = own_page(root, next_page(response.header("link")));
    // A mirror may send its first page for each of them (olah 0.5).
    if (next.empty() || tree.files.size() + tree.folders.size() > had)
      return next;
    add_siblings(tree);
    return {};
  }

  // A mirror may pass on the hub's own URL of the next page. No other host is
  // asked: it would get the token.
  std::string own_page(const std::string& root, const std::string& url) const {
    if (url.empty() || url.starts_with('/') ||
        parse_url(url).origin() == parse_url(endpoint_).origin())
      return url;
    const size_t api = url.find("/api/");
    if (api == url.npos)
      throw input_error({root, {}}, "the hub's list goes on at another host");
    return url.substr(api);
  }

  // The revision's own list of names.
  void add_siblings(Tree& tree) {
    const std::string& root = tree.name.root;
    const Request asked =
        ask(root, fmt::format("/api/{}/{}/revision/{}?blobs=true",
                              tree.name.kind, tree.name.repo, tree.sha));
    const Response response = fetch(asked);
    check_status(asked, response);
    const auto told = text::parse_json(response.body, root);
    if (const auto siblings = told.find("siblings"); siblings != told.end())
      for (const auto& entry : *siblings)
        add_file(text::string_member(entry, "rfilename", root), entry, "blobId",
                 tree);
  }

  // `hash` is the key of git's hash of it. A file of LFS has a sha256 instead.
  static void add_file(const std::string& path, const nlohmann::json& entry,
                       const char* hash, Tree& tree) {
    const std::string& root = tree.name.root;
    check_plain(root, path);
    if (tree.files.contains(path)) return;
    Facts facts;
    facts.tag = tree.sha + "/" + path;
    const auto take = [&](const nlohmann::json& from, const char* key) {
      if (const auto size = from.find("size");
          size == from.end() || size->is_null())
        tree.unsized.insert(path);
      else
        facts.size = text::uint_member(from, "size", root);
      if (const auto found = from.find(key);
          found != from.end() && !found->is_null())
        facts.tag = text::string_member(from, key, root);
    };
    take(entry, hash);
    if (const auto lfs = entry.find("lfs");
        lfs != entry.end() && lfs->is_object()) {
      tree.unsized.erase(path);
      take(*lfs, lfs->contains("sha256") ? "sha256" : "oid");
      if (facts.tag.starts_with("sha256:")) facts.tag.erase(0, 7);
      if (facts.tag.size() == 64) facts.sha256 = facts.tag;
    }
    add_folders(path, tree);
    tree.files.emplace(path, std::move(facts));
  }

  // What no list told is in the answer to a request for the first byte.
  Facts measured(const std::string& path, Facts facts) {
    if (!facts.local.empty()) return facts;
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = sizes_.find(path); known != sizes_.end()) {
        facts.size = known->second;
        return facts;
      }
    }
    std::byte first;
    Request asked = request(path);
    asked.into = {&first, 1};
    asked.first_look = true;
    const Response response = fetch(asked);
    // An empty file has no first byte.
    const bool empty = response.status == 416 &&
                       response.header("content-range") == "bytes */0";
    if (!empty) {
      check_status(asked, response);
      facts.ranges = response.status == 206;
      facts.size =
          facts.ranges ? response.total.value_or(0)
          : response.left
              ? text::number(response.header("content-length")).value_or(0)
              : response.body.size();
    }
    const std::lock_guard lock(mutex_);
    sizes_[path] = facts.size;
    return facts;
  }

  // <https://…>; rel="next"
  static std::string next_page(const std::string& link) {
    const size_t mark = link.find("rel=\"next\"");
    if (mark == link.npos) return {};
    const size_t end = link.rfind('>', mark);
    const size_t begin = link.rfind('<', mark);
    if (begin == link.npos || end == link.npos || end < begin) return {};
    return link.substr(begin + 1, end - begin - 1);
  }

  // models--ORG--NAME/snapshots/SHA
  static std::string repo_folder(const HubName& name) {
    std::string flat = name.repo;
    flat.replace(flat.find('/'), 1, "--");
    return cache_folder() + "/" + name.kind + "--" + flat;
  }
  static std::string snapshot(const HubName& name, const std::string& sha) {
    return repo_folder(name) + "/snapshots/" + sha;
  }

  std::optional<Tree> cached_tree(const HubName& name) {
    Tree tree{.name = name};
    tree.sha = is_commit(name.revision)
                   ? name.revision
                   : first_line(repo_folder(name) + "/refs/" + name.revision);
    const std::string folder = snapshot(name, tree.sha);
    if (tree.sha.empty() || !io::is_directory(folder))
      throw missing_error({name.root, {}},
                          "is not in the hub's cache ({}), and HF_HUB_OFFLINE "
                          "forbids to ask for it",
                          repo_folder(name))
          .with_hint(io::is_directory(repo_folder(name))
                         ? "of it other revisions are there; unset "
                           "HF_HUB_OFFLINE to fetch this one"
                         : "HF_HUB_CACHE names another cache; unset "
                           "HF_HUB_OFFLINE to ask the hub");
    tree.folders.insert("");
    add_cached(folder, "", tree);
    return tree;
  }

  static void add_cached(const std::string& folder, const std::string& below,
                         Tree& tree) {
    for (const std::string& one : io::list_directory(folder)) {
      const std::string full = io::join(folder, one);
      const std::string path = below.empty() ? one : below + "/" + one;
      if (io::is_directory(full)) {
        tree.folders.insert(path);
        add_cached(full, path, tree);
        continue;
      }
      const auto size = io::file_size(full);
      if (!size) continue;
      Facts facts;
      facts.size = *size;
      facts.local = full;
      tree.files.emplace(path, std::move(facts));
    }
  }

  std::string endpoint_;
  std::mutex tree_mutex_;
  std::map<std::string, std::optional<Tree>> trees_;  // by root
  std::mutex mutex_;
  // By path: where the hub redirects; "" if it has the bytes itself.
  std::map<std::string, std::string> places_;
  std::map<std::string, uint64_t> sizes_;  // of what no list told
  std::map<std::string, std::shared_ptr<std::mutex>> turns_;  // to ask for it
};

}  // namespace

std::unique_ptr<Store> make_hub_store() { return std::make_unique<HubStore>(); }

}  // namespace ckpt::net
