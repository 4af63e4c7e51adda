// SPDX-License-Identifier: Apache-2.0
// This side of the seam: which store answers, and a cache of its answers. A
// dozen readers look at the same names to detect a format, and a server is
// asked once.
#include "lib/io/remote.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "lib/io/file.h"
#include "lib/io/names.h"
#include "lib/io/remote_below.h"
#include "lib/net/curl.h"
#include "lib/net/file.h"
#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/upload_sums.h"
#include "lib/net/url.h"

namespace ckpt::net {
namespace {

struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, std::optional<Facts>> facts;
  std::unordered_map<std::string, std::shared_ptr<const NetFile>> files;
  std::unordered_map<std::string, std::optional<std::vector<std::string>>>
      lists;
  std::vector<std::shared_ptr<const NetFile>> old;
};

Known& known() {
  static Known* const all = new Known;
  return *all;
}

struct Taken {
  std::mutex mutex;
  std::map<std::string, Secrets> secrets;
};

Taken& taken() {
  static Taken* const all = new Taken;
  return *all;
}

std::optional<Facts> facts_of(const std::string& path) {
  Known& all = known();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.facts.find(path); found != all.facts.end())
      return found->second;
  }
  std::optional<Facts> facts = store_of(path).look(path);
  const std::lock_guard lock(all.mutex);
  return all.facts.emplace(path, std::move(facts)).first->second;
}

struct stat as_stat(const Facts& facts) {
  if (!facts.local.empty()) {
    struct stat there;
    if (::stat(facts.local.c_str(), &there) == 0) return there;
  }
  struct stat made = {};
  made.st_mode = facts.directory ? S_IFDIR | 0555 : S_IFREG | 0444;
  made.st_size = static_cast<off_t>(facts.size);
  // Hashes take the place of a file system's own numbers.
  made.st_dev = UINT32_MAX;
  made.st_ino = std::hash<std::string>{}(facts.tag);
  made.st_nlink = 1;
  return made;
}

}  // namespace

Request Store::write_request(const std::string& path, const std::string&,
                             const std::string&, const std::string&) {
  throw usage_error({path, {}}, "can be read, not written")
      .with_hint("targets are paths, s3:// and gs://");
}

Response fetch_renewed(Store& store, Request asked) {
  constexpr int kMost = 4;  // keys that were half written count, too
  for (int left = kMost;; --left) {
    Response response = fetch(asked);
    if (left == 1 || !may_have_expired(response) ||
        !store.renew(asked, response))
      return response;
  }
}

void forget_all() {
  Known& all = known();
  {
    const std::lock_guard lock(all.mutex);
    all.facts.clear();
    all.lists.clear();
    // Blocks are identified by the file's address in memory, which must not be
    // reused, so old files are kept.
    for (auto& [path, file] : all.files) all.old.push_back(std::move(file));
    all.files.clear();
  }
  for (const char* scheme : {"https://", "hf://", "s3://", "gs://", "az://"})
    store_of(scheme).forget();
}

bool is_along(const std::string& path, const std::string& other) {
  const auto is_below = [](const std::string& one, const std::string& folder) {
    return one.size() > folder.size() && one.starts_with(folder) &&
           one[folder.size()] == '/';
  };
  return path == other || is_below(path, other) || is_below(other, path);
}

void forget_at(const std::string& path) {
  Known& all = known();
  {
    const std::lock_guard lock(all.mutex);
    const auto forgotten = [&](const auto& entry) {
      return is_along(path, entry.first);
    };
    std::erase_if(all.facts, forgotten);
    std::erase_if(all.lists, forgotten);
    for (auto& [name, file] : all.files)
      if (is_along(path, name)) all.old.push_back(std::move(file));
    std::erase_if(all.files, forgotten);
  }
  store_of(path).forget_at(path);
}

std::string last_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string folder_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

Store& store_of(const std::string& path) {
  static Store& web = *make_web_store().release();
  static Store& hub = *make_hub_store().release();
  static Store& s3 = *make_s3_store().release();
  static Store& gcs = *make_gcs_store().release();
  static Store& azure = *make_azure_store().release();
  if (path.starts_with("hf://")) return hub;
  if (path.starts_with("s3://")) return s3;
  if (path.starts_with("gs://")) return gcs;
  if (path.starts_with("az://")) return azure;
  return web;
}

std::optional<Secrets> secrets_of(const std::string& path) {
  Taken& all = taken();
  const std::lock_guard lock(all.mutex);
  const auto found = all.secrets.find(path);
  if (found == all.secrets.end()) return std::nullopt;
  return found->second;
}

bool has_secrets_beside(const std::string& path) {
  Taken& all = taken();
  const std::lock_guard lock(all.mutex);
  const std::string folder = folder_of(path) + "/";
  const auto found = all.secrets.lower_bound(folder);
  return found != all.secrets.end() && found->first.starts_with(folder) &&
         !found->second.query.empty();
}

void check_scheme(const std::string& url, const std::string& path) {
  const Url parts = parse_url(url);
  if (parts.scheme != "http" || is_loopback(parts.authority) ||
      settings().allow_http)
    return;
  throw unsafe_error({path, {}},
                     "http:// to another machine is neither secret nor proof "
                     "against changes")
      .with_hint("use https://, or set CKPT_NET_ALLOW_HTTP=1");
}

}  // namespace ckpt::net

namespace ckpt::io {

OpenedRemote open_remote(const std::string& url) {
  const std::string path = net::normal(url);
  const auto facts = net::facts_of(path);
  if (!facts) throw missing_error({url, {}}, "does not exist");
  if (facts->directory)
    throw input_error({url, {}}, "is a directory, not a regular file");
  OpenedRemote opened{.facts = net::as_stat(*facts)};
  if (!facts->local.empty()) {
    opened.local = facts->local;
    return opened;
  }
  net::Known& all = net::known();
  const std::lock_guard lock(all.mutex);
  auto& file = all.files[path];
  if (!file) {
    file =
        std::make_shared<const net::NetFile>(net::store_of(path), path, *facts);
    if (auto known = all.facts.find(path);
        known != all.facts.end() && known->second)
      known->second->head.clear();  // now it is a block
  }
  opened.file = file;
  return opened;
}

std::optional<struct stat> stat_remote(const std::string& url) {
  const auto facts = net::facts_of(net::normal(url));
  if (!facts) return std::nullopt;
  return net::as_stat(*facts);
}

std::optional<struct stat> stat_remote_again(const std::string& url) {
  const std::string path = net::normal(url);
  const auto facts = net::store_of(path).look_again(path);
  if (!facts) return std::nullopt;
  return net::as_stat(*facts);
}

std::unordered_map<std::string, struct stat> stat_remote_again(
    const std::vector<std::string>& urls) {
  std::map<net::Store*, std::vector<std::string>> of_store;
  for (const std::string& url : urls)
    of_store[&net::store_of(url)].push_back(net::normal(url));
  std::unordered_map<std::string, struct stat> told;
  for (const auto& [store, paths] : of_store) {
    const auto facts = store->look_at_all_again(paths);
    for (const std::string& url : urls)
      if (const auto found = facts.find(net::normal(url)); found != facts.end())
        told.emplace(url, net::as_stat(found->second));
  }
  return told;
}

void forget_remote() { net::forget_all(); }

std::vector<std::string> names_in_remote(const std::string& url) {
  const std::string path = net::normal(url);
  auto names = net::store_of(path).names(path);
  if (!names) throw missing_error({url, {}}, "cannot be listed");
  std::ranges::sort(*names);
  return *std::move(names);
}

std::vector<std::string> list_remote(const std::string& url) {
  const std::string path = net::normal(url);
  net::Known& all = net::known();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.lists.find(path);
        found != all.lists.end() && found->second)
      return *found->second;
  }
  auto names = net::store_of(path).list(path);
  if (!names) throw missing_error({url, {}}, "cannot be listed");
  std::ranges::sort(*names);
  const std::lock_guard lock(all.mutex);
  all.lists[path] = names;
  return *std::move(names);
}

void look_below_remote(const std::string& url) {
  const std::string path = net::normal(url);
  net::store_of(path).look_below(path);
}

void look_beside_remote(const std::string& url) {
  const std::string path = net::normal(url);
  net::store_of(path).look_beside(path);
}

RemoteFacts remote_facts(const std::string& url) {
  const auto facts = net::facts_of(net::normal(url));
  if (!facts) return {};
  return {facts->sha256, !facts->tag.empty(), facts->ranges};
}

bool has_etag_of(const std::string& url, const Handle& file) {
  const auto facts = net::facts_of(net::normal(url));
  return facts && facts->size == file.size() &&
         net::is_etag_of(net::unquoted(facts->tag), file);
}

std::string remote_name(const std::string& url) {
  const std::string name = net::last_name(net::normal(url));
  if (!url.starts_with("http")) return name;
  const std::string decoded = net::decode(name);
  const bool is_name =
      decoded.find_first_of(std::string_view("/\0", 2)) == decoded.npos &&
      decoded != "." && decoded != "..";
  return is_name ? decoded : name;
}

std::string take_secrets(const std::string& url) {
  if (!url.starts_with("http")) return url;
  const net::Url parts = net::parse_url(url);
  if (parts.userinfo.empty() && parts.query.empty()) return url;
  net::Taken& all = net::taken();
  const std::lock_guard lock(all.mutex);
  all.secrets[net::normal(parts.shown())] = {parts.userinfo, parts.query};
  return parts.shown();
}

uint64_t share_remote_memory(uint64_t bytes) {
  constexpr uint64_t kMostShared = uint64_t{256} << 20;
  if (net::traffic().requests == 0) return 0;
  const uint64_t share = std::min(kMostShared, bytes / 4);
  net::set_memory(share);
  return share;
}

uint64_t remote_memory() { return net::memory(); }

std::string remote_problem() {
  try {
    net::curl();
    return {};
  } catch (const Error& error) {
    return error.problem() + (error.hint().empty() ? "" : ": " + error.hint());
  }
}

RemoteTraffic remote_traffic() {
  const net::Traffic now = net::traffic();
  return {now.requests, now.bytes, now.sent};
}

}  // namespace ckpt::io
