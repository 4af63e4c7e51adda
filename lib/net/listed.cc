// SPDX-License-Identifier: Apache-2.0
#include "lib/net/listed.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/failures.h"
#include "lib/net/settings.h"
#include "lib/parallel.h"
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

namespace {

Facts folder_facts() {
  Facts folder;
  folder.directory = true;
  return folder;
}

}  // namespace

uint64_t size_number(const std::string& path, const std::string& text) {
  const auto value = text::number(text);
  if (!value)
    throw Error(ExitCode::kIo, {path, {}},
                fmt::format("the server names no size of it{}",
                            text.empty() ? "" : ": " + text::printable(text)));
  return *value;
}

// Nothing is below what a listing, or its own answer, shows as an object.
// Readers look below each file of a directory for what would make it one of
// theirs: two requests for each of 16,384 files.
bool ListedStore::is_below_object(std::string path) const {
  while (!parse_place(path).key.empty()) {
    const std::string name = last_name(path);
    path = folder_of(path);
    if (alone_.contains(fmt::format("{}/{}", path, name))) return true;
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
      const Facts* const entry = found->second->find(last_name(path));
      return entry ? std::optional(*entry) : std::nullopt;
    }
  }
  if (!place.key.empty()) {
    const auto told = look_in_listings(path);
    if (told) return *told;
  }
  // Whoever lists a bucket learns whether it is there; all that is in it may be
  // many pages.
  if (place.key.empty()) return folder_facts();
  // Both are round trips; of what looks like a file, both are asked at once.
  if (last_name(path).find('.') != std::string::npos) return look_both(path);
  return listing(path) ? folder_facts() : look_alone(path);
}

std::optional<Facts> ListedStore::look_both(const std::string& path) {
  std::optional<Facts> found;
  std::optional<Error> failure;
  bool folder = false;
  parallel_for(
      2,
      [&](size_t i) {
        if (i == 0) {
          folder = listing(path) != nullptr;
          return;
        }
        const failures::Unimportant if_it_is_a_folder;
        try {
          found = look_alone(path);
        } catch (const Error& error) {
          failure = error;
        }
      },
      2);
  if (folder) return folder_facts();
  if (!failure) return found;
  failures::note(*failure);
  throw *failure;
}

// What looks like a file is asked for by its name (look_both()): the directory
// around it may be large.
void ListedStore::look_beside(const std::string& path) {
  if (parse_place(path).key.empty() ||
      last_name(path).find('.') != std::string::npos)
    return;
  const std::string folder = folder_of(path);
  {
    const std::lock_guard lock(mutex_);
    if (listings_.contains(folder) || listings_.contains(path) ||
        !begun_.insert(folder).second)
      return;
  }
  begin_listings(folder, path);
}

// Whether a listing of the directory can tell. Of one that was begun, its first
// page is waited for.
bool ListedStore::knows(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = listings_.find(path);
    if (found != listings_.end()) return found->second.has_value();
    if (begun_.erase(path) == 0) return false;
  }
  const failures::Unimportant if_each_is_asked;
  try {
    auto told = list_begun(path);
    // What is odd beside a checkpoint is no matter of its readers.
    if (!told || (*told && !(*told)->odd.empty())) return false;
    return keep(path, *std::move(told)) != nullptr;
  } catch (const Error&) {
    return false;
  }
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
    known = knows(above);
  }
  if (!known) return std::nullopt;
  while (true) {
    const Listing* const all = listing(above);
    if (!all) return std::nullopt;
    const Facts* const entry = all->find(names.back());
    if (!entry) return std::optional<Facts>();
    if (names.size() == 1) return *entry;
    if (!entry->directory) return std::optional<Facts>();
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
    if (is_below_object(folder_of(path))) return std::nullopt;
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
  if (found && !found->odd.empty()) throw found->odd.begin()->second;
  return names(path);
}

std::optional<std::vector<std::string>> ListedStore::names(
    const std::string& path) {
  const Listing* const found = listing(path);
  if (!found) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [name, facts] : found->entries) names.push_back(name);
  return names;
}

void ListedStore::look_below(const std::string& path) {
  const Listing* const known = listing(path);
  if (!known) return;
  {
    // Without folders, or after one page of everything, this is known.
    const std::lock_guard lock(mutex_);
    const auto is_new = [&](const auto& entry) {
      return entry.second.directory &&
             !listings_.contains(path + "/" + entry.first);
    };
    if (std::ranges::none_of(known->entries, is_new)) return;
  }
  keep(list_below(path));
}

void ListedStore::keep(Folders&& found) {
  const std::lock_guard lock(mutex_);
  for (auto& [folder, made] : found)
    listings_.try_emplace(folder, std::move(made));
}

const Listing* ListedStore::keep(const std::string& path,
                                 std::optional<Listing> made) {
  const std::lock_guard lock(mutex_);
  const auto& kept = listings_.emplace(path, std::move(made)).first->second;
  return kept ? &*kept : nullptr;
}

void ListedStore::forget() {
  const std::lock_guard lock(mutex_);
  listings_.clear();
  one_by_one_.clear();
  begun_.clear();
}

void ListedStore::forget_at(const std::string& path) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listings_,
                [&](const auto& entry) { return is_along(path, entry.first); });
  std::erase_if(begun_,
                [&](const std::string& one) { return is_along(path, one); });
}

// Null if nothing is below it.
const Listing* ListedStore::listing(const std::string& path) {
  knows(path);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = listings_.find(path); found != listings_.end())
      return found->second ? &*found->second : nullptr;
  }
  if (list_around(path)) {
    const std::lock_guard lock(mutex_);
    if (const auto found = listings_.find(path); found != listings_.end())
      return found->second ? &*found->second : nullptr;
  }
  // Most checkpoints have less than a page of names in all their directories:
  // then this is the only listing, however deep they are.
  if (!parse_place(path).key.empty())
    if (auto all = list_small(path)) {
      if (all->empty()) return keep(path, std::nullopt);
      Listing top = (*all)[path];
      keep(*std::move(all));
      return keep(path, std::move(top));
    }
  return keep(path, list_all(path));
}

// Whoever lists a few directories of one will list them all, as readers of a
// directory for each array do: then all that is below comes in pages. In how
// many is not known before, so as many are tried as twice the listings so far,
// and again after four times as many.
bool ListedStore::list_around(const std::string& path) {
  constexpr size_t kFirst = 4, kTimes = 4;
  const std::string above = folder_of(path);
  size_t pages = 0;
  // Others wait for what is being listed: it may hold what they look for.
  const std::lock_guard alone(around_);
  {
    const std::lock_guard lock(mutex_);
    if (listings_.contains(path)) return true;
    const auto known = listings_.find(above);
    if (known == listings_.end() || !known->second ||
        parse_place(above).key.empty())
      return false;
    const size_t count = ++one_by_one_[above];
    size_t turn = kFirst;
    while (turn < count) turn *= kTimes;
    const auto left = static_cast<size_t>(
        std::ranges::count_if(known->second->entries, [&](const auto& entry) {
          return entry.second.directory &&
                 !listings_.contains(above + "/" + entry.first);
        }));
    pages = std::min(2 * count, left);
    if (count != turn || pages < 2) return false;
  }
  auto all = list_within(above, pages);
  if (!all || all->empty()) return false;
  keep(*std::move(all));
  return true;
}

void check_names(const std::string& path, size_t names) {
  constexpr size_t kMostNames = 1'000'000;
  if (names > kMostNames)
    throw input_error({path, {}}, "more than {} names lie in it", kMostNames);
}

void check_marker(const std::string& path, const std::string& before,
                  const std::string& next, size_t pages) {
  // Pages may be small, or empty; stores that fill them need a thousand.
  constexpr size_t kMostPages = 4'000;
  if (pages >= kMostPages)
    throw input_error({path, {}},
                      "the server's listing has no end after {} pages", pages);
  if (!next.empty() && next != before) return;
  throw Error(
      ExitCode::kIo, {path, {}},
      "the server's listing is cut, and it does not say where it continues: "
      "names would be missing",
      "name the files, not their directory; the server has to speak "
      "ListObjectsV2 (its continuation tokens)");
}

namespace {

// A key that no path can name would be left out, or taken for another one.
bool is_component(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('\0') == name.npos;
}

Error no_component(const std::string& folder, const std::string& name) {
  return input_error({folder, {}},
                     "has an object whose name goes on with \"{}/\", which is "
                     "not a part of a path",
                     text::printable(name))
      .with_hint(
          "rename or remove it there, or name the files, not their "
          "directory");
}

// Some programs mark a directory by an empty object of its name.
void check_both(const std::string& folder, const std::string& name,
                const Facts& object, Listing& listing) {
  if (object.size == 0) return;
  listing.odd.try_emplace(
      name,
      input_error({folder + "/" + name, {}},
                  "is an object of {} bytes, and others lie below it as in a "
                  "directory",
                  object.size)
          .with_hint("rename one of them there: no directory can hold both"));
}

}  // namespace

const Facts* Listing::find(const std::string& name) const {
  if (const auto found = odd.find(name); found != odd.end())
    throw found->second;
  const auto entry = entries.find(name);
  return entry == entries.end() ? nullptr : &entry->second;
}

void add_object(const std::string& folder, std::string name, uint64_t size,
                std::string etag, Listing& listing) {
  // "runs/" itself may be an object, representing the directory.
  if (name.empty() || name.find('/') != name.npos) return;
  if (!is_component(name)) {
    listing.odd.try_emplace(name, no_component(folder, name));
    return;
  }
  Facts facts;
  facts.size = size;
  // A listing may leave out the quotes that a header has: Azure's, rclone's.
  if (!etag.empty() && !etag.ends_with('"')) etag = '"' + etag + '"';
  facts.version.etag = std::move(etag);
  facts.tag = facts.version.etag;
  const auto found = listing.entries.find(name);
  if (found != listing.entries.end() && found->second.directory)
    return check_both(folder, name, facts, listing);
  listing.entries[std::move(name)] = std::move(facts);
}

void add_folder(const std::string& folder, std::string name, Listing& listing) {
  if (name.ends_with('/')) name.pop_back();
  if (!is_component(name)) {
    listing.odd.try_emplace(name, no_component(folder, name));
    return;
  }
  const auto found = listing.entries.find(name);
  if (found != listing.entries.end() && !found->second.directory)
    check_both(folder, name, found->second, listing);
  Facts facts;
  facts.directory = true;
  listing.entries[std::move(name)] = std::move(facts);
}

void add_below(const std::string& root, std::string_view name, uint64_t size,
               const std::string& etag, Folders& folders) {
  std::string folder = root;
  std::vector<Listing*> above;
  bool goes_on = true;
  while (goes_on) {
    const size_t slash = name.find('/');
    const std::string first(name.substr(0, slash));
    Listing& listing = folders[folder];
    goes_on = slash != name.npos;
    if (goes_on)
      add_folder(folder, first, listing);
    else
      add_object(folder, first, size, etag, listing);
    if (const auto odd = listing.odd.find(first); odd != listing.odd.end()) {
      // A path is no name of theirs: only who wants all of them meets it.
      for (Listing* const one : above)
        if (one->odd.empty())
          one->odd.try_emplace(fmt::format("{}/{}", folder, first),
                               odd->second);
      return;
    }
    above.push_back(&listing);
    folder += "/" + first;
    if (goes_on) name.remove_prefix(slash + 1);
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
