// SPDX-License-Identifier: Apache-2.0
#include "api/keep/links.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostTracker = 4096;

std::string real_path(const std::string& path) {
  std::error_code failed;
  const fs::path found = fs::weakly_canonical(path, failed);
  return failed ? path : found.string();
}

bool is_in(const std::string& path, const std::string& folder) {
  return path == folder || path.starts_with(folder + "/");
}

std::string relative_to(const std::string& root, const std::string& path) {
  const std::string inside = root.ends_with('/') ? root : root + "/";
  return path.starts_with(inside) ? path.substr(inside.size()) : path;
}

// Whether a small text is about the step: its name or its path among the words,
// or nothing but its number.
bool names_step(std::string_view text, const StepRow& step) {
  constexpr std::string_view kBetween = " \t\r\n\"'{}[],:=";
  size_t begin = text.find_first_not_of(kBetween);
  if (begin == text.npos) return false;
  const size_t end = text.find_last_not_of(kBetween) + 1;
  text = text.substr(begin, end - begin);
  if (step.number && text::number(text) == step.number) return true;
  const std::string name = io::base_name(step.path);
  while (!text.empty()) {
    const size_t length = std::min(text.find_first_of(kBetween), text.size());
    std::string_view word = text.substr(0, length);
    while (word.ends_with('/')) word.remove_suffix(1);
    if (word.substr(word.rfind('/') + 1) == name) return true;
    const size_t next = text.find_first_not_of(kBetween, length);
    if (next == text.npos) break;
    text.remove_prefix(next);
  }
  return false;
}

std::string small_text(const std::string& path) {
  struct stat facts;
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode) ||
      static_cast<uint64_t>(facts.st_size) > kMostTracker)
    return {};
  return io::read_file(path, kMostTracker);
}

// The root and the steps by the names that links are resolved to.
struct Places {
  Places(const std::string& folder, const std::vector<StepRow>& rows)
      : root(folder), steps(rows) {
    for (const StepRow& step : steps) {
      const std::string above = real_path(io::parent(step.path));
      real.push_back(io::join(above, io::base_name(step.path)));
    }
  }
  std::optional<size_t> step_of(const std::string& path) const {
    for (size_t i = 0; i < real.size(); ++i)
      if (is_in(path, real[i])) return i;
    return std::nullopt;
  }
  const std::string& root;
  const std::vector<StepRow>& steps;
  std::vector<std::string> real;
};

void add_link(const std::string& link, const std::string& shown,
              const Places& places, std::vector<Reference>& found) {
  const auto to = places.step_of(real_path(link));
  if (!to) return;
  const std::string at =
      io::join(real_path(io::parent(link)), io::base_name(link));
  const auto owner = places.step_of(at);
  if (owner != to) found.push_back({shown, *to, owner});
}

void add_links_below(const Places& places, std::vector<Reference>& found) {
  std::error_code failed;
  fs::recursive_directory_iterator at(places.root, failed);
  for (const fs::recursive_directory_iterator end; !failed && at != end;
       at.increment(failed)) {
    const std::string path = at->path().string();
    if (io::is_lost_and_found(path) || path.ends_with(kPrunedEnding))
      at.disable_recursion_pending();
    if (at->is_symlink(failed) && !failed)
      add_link(path, relative_to(places.root, path), places, found);
  }
  if (failed)
    throw io_error(places.root, "cannot list what is below it", failed.value());
}

// Links beside the root; a directory above it that can't be listed has none
// that anybody else could follow, either.
void add_links_above(const Places& places, std::vector<Reference>& found) {
  std::error_code failed;
  const fs::path above = fs::path(real_path(places.root)).parent_path();
  for (fs::directory_iterator at(above, failed), end; !failed && at != end;
       at.increment(failed))
    if (at->is_symlink(failed) && !failed)
      add_link(at->path().string(), "../" + at->path().filename().string(),
               places, found);
}

}  // namespace

std::vector<Reference> references(const std::string& root,
                                  const std::vector<StepRow>& steps) {
  const Places places(root, steps);
  std::vector<Reference> found;
  add_links_below(places, found);
  add_links_above(places, found);
  for (const std::string& name : io::list_directory(root)) {
    const std::string text = small_text(io::join(root, name));
    for (size_t i = 0; i < steps.size(); ++i)
      if (io::join(root, name) != steps[i].path && names_step(text, steps[i]))
        found.push_back({name, i, std::nullopt});
  }
  return found;
}

std::string named_by_root(const std::string& root, const StepRow& step) {
  const std::string real =
      io::join(real_path(io::parent(step.path)), io::base_name(step.path));
  for (const std::string& name : io::list_directory(root)) {
    const std::string path = io::join(root, name);
    if (path == step.path) continue;
    if (io::is_link(path) ? is_in(real_path(path), real)
                          : names_step(small_text(path), step))
      return name;
  }
  return {};
}

bool is_own(const std::string& root, const StepRow& step) {
  const std::string below = relative_to(root, step.path);
  return !io::is_link(step.path) &&
         real_path(step.path) == io::join(real_path(root), below);
}

}  // namespace ckpt::library
