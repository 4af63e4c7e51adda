// SPDX-License-Identifier: Apache-2.0
#include "lib/net/listed.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "lib/net/settings.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::net {

Place parse_place(const std::string& path) {
  const std::string_view rest =
      std::string_view(path).substr(path.find("://") + 3);
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return {std::string(rest), ""};
  return {std::string(rest.substr(0, slash)),
          std::string(rest.substr(slash + 1))};
}

uint64_t size_number(const std::string& path, const std::string& text) {
  const auto value = text::number(text);
  if (!value)
    throw Error(ExitCode::kIo, {path, {}},
                fmt::format("the server names no size of it{}",
                            text.empty() ? "" : ": " + text::printable(text)));
  return *value;
}

// Nothing is below what a listing shows as an object. Readers look below each
// file of a directory for what would make it one of theirs: two requests for
// each of 16,384 files.
bool ListedStore::is_below_object(std::string path) const {
  while (!parse_place(path).key.empty()) {
    const std::string name = last_name(path);
    path = folder_of(path);
    const auto found = listings_.find(path);
    if (found == listings_.end() || !found->second) continue;
    const auto entry = found->second->entries.find(name);
    if (entry != found->second->entries.end() && !entry->second.directory)
      return true;
  }
  return false;
}

std::optional<Facts> ListedStore::look(const std::string& path) {
  const Place place = parse_place(path);
  if (place.bucket.empty()) return std::nullopt;
  if (!place.key.empty()) {
    const std::string folder = folder_of(path);
    const std::lock_guard lock(mutex_);
    if (is_below_object(folder)) return std::nullopt;
    const auto found = listings_.find(folder);
    if (found != listings_.end() && found->second) {
      const auto entry = found->second->entries.find(last_name(path));
      if (entry == found->second->entries.end()) return std::nullopt;
      return entry->second;
    }
  }
  if (!place.key.empty()) {
    const auto told = look_in_listings(path);
    if (told) return *told;
  }
  if (listing(path)) {
    Facts folder;
    folder.directory = true;
    return folder;
  }
  return place.key.empty() ? std::nullopt : look_alone(path);
}

// What the listings say from the nearest directory above it that was listed:
// where a name is none of its directories, nothing lies below; else that is
// listed, too. It answers for all that readers will look for there, which would
// be two requests for each of fifty names. Nothing if no listing can tell.
std::optional<std::optional<Facts>> ListedStore::look_in_listings(
    const std::string& path) {
  std::vector<std::string> names;  // below `above`, the next one last
  std::string above = path;
  bool known = false;
  while (!known && !parse_place(above).key.empty()) {
    names.push_back(last_name(above));
    above = folder_of(above);
    const std::lock_guard lock(mutex_);
    const auto found = listings_.find(above);
    known = found != listings_.end() && found->second;
  }
  if (!known) return std::nullopt;
  while (true) {
    const Listing* const all = listing(above);
    if (!all) return std::nullopt;
    const auto entry = all->entries.find(names.back());
    if (entry == all->entries.end()) return std::optional<Facts>();
    if (names.size() == 1) return entry->second;
    if (!entry->second.directory) return std::optional<Facts>();
    above += "/" + names.back();
    names.pop_back();
  }
}

// Where the directory can't be listed.
std::optional<Facts> ListedStore::look_alone(const std::string& path) {
  const std::string folder = folder_of(path) + "/";
  bool beside = false;
  {
    const std::lock_guard lock(mutex_);
    for (std::string above = folder_of(path); !parse_place(above).key.empty();
         above = folder_of(above))
      if (alone_.contains(above)) return std::nullopt;
    const auto found = alone_.lower_bound(folder);
    beside = found != alone_.end() && found->starts_with(folder);
  }
  auto facts = head(path, beside);
  const std::lock_guard lock(mutex_);
  if (facts) alone_.insert(path);
  return facts;
}

std::optional<std::vector<std::string>> ListedStore::list(
    const std::string& path) {
  const Listing* const found = listing(path);
  if (!found) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [name, facts] : found->entries) names.push_back(name);
  return names;
}

void ListedStore::look_below(const std::string& path) {
  // Without folders, its own listing already says everything.
  const Listing* const known = listing(path);
  const auto is_folder = [](const auto& entry) {
    return entry.second.directory;
  };
  if (!known || std::ranges::none_of(known->entries, is_folder)) return;
  Folders found = list_below(path);
  const std::lock_guard lock(mutex_);
  for (auto& [folder, made] : found)
    listings_.try_emplace(folder, std::move(made));
}

void ListedStore::forget() {
  const std::lock_guard lock(mutex_);
  listings_.clear();
}

// Null if nothing is below it.
const Listing* ListedStore::listing(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = listings_.find(path); found != listings_.end())
      return found->second ? &*found->second : nullptr;
  }
  std::optional<Listing> made = list_all(path);
  const std::lock_guard lock(mutex_);
  const auto& kept = listings_.emplace(path, std::move(made)).first->second;
  return kept ? &*kept : nullptr;
}

void check_names(const std::string& path, size_t names) {
  constexpr size_t kMostNames = 1'000'000;
  if (names > kMostNames)
    throw input_error({path, {}}, "more than {} names lie in it", kMostNames);
}

void add_object(std::string name, uint64_t size, std::string etag,
                Listing& listing) {
  // "runs/" itself may be an object, representing the directory.
  if (name.empty() || name.find('/') != name.npos) return;
  Facts facts;
  facts.size = size;
  facts.version.etag = std::move(etag);
  facts.tag = facts.version.etag;
  listing.entries[std::move(name)] = std::move(facts);
}

void add_folder(std::string name, Listing& listing) {
  while (name.ends_with('/')) name.pop_back();
  if (name.empty()) return;
  Facts facts;
  facts.directory = true;
  listing.entries.try_emplace(std::move(name), std::move(facts));
}

void add_below(const std::string& root, std::string_view name, uint64_t size,
               std::string etag, Folders& folders) {
  std::string folder = root;
  while (true) {
    const size_t slash = name.find('/');
    const std::string first(name.substr(0, slash));
    Listing& listing = folders[folder];
    if (slash == name.npos)
      return add_object(first, size, std::move(etag), listing);
    if (first.empty()) return;  // no directory lists it
    add_folder(first, listing);
    folder += "/" + first;
    name.remove_prefix(slash + 1);
  }
}

std::optional<Facts> facts_of_head(const Request& asked,
                                   const Response& response, bool beside) {
  if (response.status == 404) return std::nullopt;
  if (beside && is_forbidden(response)) {
    if (settings().forbidden_is_absent) return std::nullopt;
    throw forbidden_beside(asked, response);
  }
  check_status(asked, response);
  return facts_of_reply(asked.path, response);
}

Facts facts_of_reply(const std::string& path, const Response& response) {
  Facts facts;
  facts.size = size_number(path, response.header("content-length"));
  facts.version.etag = response.header("etag");
  facts.tag = facts.version.etag;
  return facts;
}

}  // namespace ckpt::net
