// SPDX-License-Identifier: Apache-2.0
#include "lib/io/listing.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/mount.h"
#include "lib/io/names.h"
#include "lib/io/remote.h"

namespace ckpt::io {
namespace {

// The listings kept by SameListings on this thread.
struct Listings {
  size_t scopes = 0;
  std::unordered_map<std::string, std::vector<std::string>> known;
};
thread_local Listings listings;

constexpr std::string_view kLostAndFound = "lost+found";

std::vector<std::string> list_now(const std::string& path) {
  if (auto names = list_mounted(path)) return *std::move(names);
  if (is_url(path)) return list_remote(path);
  DIR* directory = nullptr;
  do {
    directory = ::opendir(path.c_str());
  } while (!directory && errno == EINTR);
  if (!directory) throw io_error(path, "cannot list", errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    const bool skip =
        name == "." || name == ".." ||
        (name == kLostAndFound && is_lost_and_found(join(path, name)));
    if (!skip) names.emplace_back(name);
    errno = 0;
  }
  const int errnum = errno;
  ::closedir(directory);
  if (errnum) throw io_error(path, "cannot list", errnum);
  std::ranges::sort(names);
  return names;
}

}  // namespace

bool is_lost_and_found(const std::string& path) {
  return base_name(path) == kLostAndFound &&
         ::access(path.c_str(), R_OK | X_OK) != 0 && errno == EACCES;
}

SameListings::SameListings() { ++listings.scopes; }

SameListings::~SameListings() {
  if (--listings.scopes == 0) listings.known.clear();
}

std::vector<std::string> list_directory(const std::string& path) {
  if (listings.scopes == 0) return list_now(path);
  const auto known = listings.known.find(path);
  if (known != listings.known.end()) return known->second;
  return listings.known.emplace(path, list_now(path)).first->second;
}

std::vector<std::string> names_in(const std::string& directory) {
  return is_url(directory) ? names_in_remote(directory)
                           : list_directory(directory);
}

}  // namespace ckpt::io
