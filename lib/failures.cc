// SPDX-License-Identifier: Apache-2.0
#include "lib/failures.h"

#include <deque>
#include <mutex>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "lib/net/url.h"

namespace ckpt::failures {
namespace {

// The last ones tell as much as all of them. (The first would hide those of an
// open that comes after many, in a process that lives long.)
constexpr size_t kMost = 256;

struct Noted {
  uint64_t position = 0;
  Error error;
};

struct All {
  std::mutex mutex;
  std::deque<Noted> noted;
  uint64_t next = 0;  // position
  std::set<std::string> sources;
};

All& all() {
  static All* const made = new All;  // errors occur until the process ends
  return *made;
}

thread_local int unimportant = 0;

// As errors name it: of a URL slashes are single, and dots are taken out.
std::string in_errors(const std::string& root) {
  return root.find("://") == root.npos ? root : net::normal(root);
}

bool is_below(std::string_view path, std::string_view root) {
  while (root.size() > 1 && root.ends_with('/')) root.remove_suffix(1);
  if (root.empty() || !path.starts_with(root)) return false;
  return path.size() == root.size() || root == "/" || path[root.size()] == '/';
}

}  // namespace

void note(const Error& error) {
  if (unimportant > 0 || error.where().path.empty()) return;
  All& known = all();
  const std::lock_guard lock(known.mutex);
  known.noted.push_back({known.next++, error});
  if (known.noted.size() > kMost) known.noted.pop_front();
}

uint64_t mark() {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  return known.next;
}

std::optional<Error> since(uint64_t mark, const std::string& root) {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  const std::string below = in_errors(root);
  for (const auto& [position, error] : known.noted)
    if (position >= mark && is_below(error.where().path, below)) return error;
  return std::nullopt;
}

void add_source(const std::string& root) {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  known.sources.insert(in_errors(root));
}

std::optional<Error> any() {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  for (const auto& [position, error] : known.noted)
    for (const std::string& root : known.sources)
      if (is_below(error.where().path, root)) return error;
  return std::nullopt;
}

bool may_hide_behind(const Error& error) {
  return error.code() == ExitCode::kUsage ||
         error.code() == ExitCode::kMissing ||
         error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

void withdraw(const Error& error) {
  const std::string text = error.what();
  All& known = all();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.noted,
                [&](const Noted& one) { return one.error.what() == text; });
}

void forget() {
  All& known = all();
  const std::lock_guard lock(known.mutex);
  known.noted.clear();
}

Unimportant::Unimportant() { ++unimportant; }
Unimportant::~Unimportant() { --unimportant; }

}  // namespace ckpt::failures
