// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/dcp/directory.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/words.h"

namespace ckpt::megatron {
namespace {

constexpr std::string_view kIter = "iter_";
constexpr std::string_view kRelease = "release";
constexpr uint64_t kMostTracker = 4096;

// The path itself, or one level down, where NeMo puts the checkpoint.
std::string checkpoint_at(const std::string& path, Config& config) {
  if (auto found = read_config(path)) {
    config = std::move(*found);
    return path;
  }
  for (const char* below : {"weights", "model_weights"}) {
    const std::string inner = io::join(path, below);
    if (!io::is_directory(inner)) continue;
    if (auto found = read_config(inner)) {
      config = std::move(*found);
      return inner;
    }
  }
  return {};
}

// The iter_* of a directory, newest first; release comes last.
std::vector<std::string> iterations(const std::string& path) {
  std::vector<std::pair<uint64_t, std::string>> numbered;
  bool release = false;
  for (const std::string& name : io::list_directory(path)) {
    release |= name == kRelease;
    if (const auto iteration = iteration_number(name))
      numbered.emplace_back(*iteration, name);
  }
  std::ranges::sort(numbered, std::greater{});
  std::vector<std::string> names;
  for (auto& [iteration, name] : numbered) names.push_back(std::move(name));
  if (release) names.emplace_back(kRelease);
  return names;
}

// The step that a training root's tracker names; "" without a tracker.
std::string tracked(const std::string& path) {
  const std::string tracker = io::join(path, kTracker);
  if (!io::is_file(tracker)) return {};
  const std::string text = io::read_file(tracker, kMostTracker);
  const auto named = iteration_directory(text::trimmed(text, " \t\r\n\v\f"));
  if (named) return *named;
  throw input_error({tracker, {}}, "'{}' is neither an iteration nor 'release'",
                    text::printable(text::trimmed(text, " \t\r\n\v\f")))
      .with_hint("name the iter_ directory itself");
}

void below_root(const std::string& path, DistFound& found) {
  const std::string wanted = tracked(path);
  if (!wanted.empty()) {
    found.path = checkpoint_at(io::join(path, wanted), found.config);
    if (!found.path.empty()) {
      found.chosen = fmt::format("{}: {}", wanted, kTracker);
      return;
    }
  }
  for (const std::string& name : iterations(path)) {
    found.path = checkpoint_at(io::join(path, name), found.config);
    if (found.path.empty()) continue;
    found.chosen = fmt::format("{}: newest complete iteration", name);
    if (!wanted.empty())
      found.warning = fmt::format(
          "{} names {}, which is not a complete checkpoint; {} is read",
          kTracker, wanted, name);
    return;
  }
}

}  // namespace

std::optional<std::string> iteration_directory(std::string_view word) {
  if (word == kRelease) return std::string(kRelease);
  const auto iteration = text::number(word);
  if (!iteration) return std::nullopt;
  return fmt::format("{}{:07}", kIter, *iteration);
}

std::optional<uint64_t> iteration_number(std::string_view directory) {
  if (!directory.starts_with(kIter)) return std::nullopt;
  return text::number(directory.substr(kIter.size()));
}

namespace {

// Why a directory has no checkpoint. A step whose save was cut short says more
// than a missing file.
std::string why_none(const std::string& path) {
  for (const std::string& name : iterations(path))
    if (!dcp::megatron_sign(io::join(path, name)).empty())
      return fmt::format("{} has no {}: an incomplete save", name, kConfigFile);
  return fmt::format("no {} in it", kConfigFile);
}

}  // namespace

DistFound locate_dist(const std::string& path) {
  DistFound found;
  if (!io::is_directory(path)) {
    found.why = "not a directory";
    return found;
  }
  found.path = checkpoint_at(path, found.config);
  if (!found.path.empty()) {
    if (found.path != path)
      found.chosen = fmt::format("{}: the checkpoint in {}",
                                 io::base_name(found.path), path);
  } else {
    below_root(path, found);
    if (!found.path.empty()) found.root = path;
  }
  found.why =
      found.path.empty()
          ? why_none(path)
          : fmt::format("{} says {}",
                        found.path == path
                            ? kConfigFile
                            : io::join(io::base_name(found.path), kConfigFile),
                        text::printable(found.config.sharded_backend));
  return found;
}

namespace {

// What belongs to the checkpoint itself.
bool is_part(const std::string& name, const std::set<std::string>& read) {
  return read.contains(name) || name == kConfigFile || name == kCommonFile ||
         name == "integrity.json" || name.ends_with("ckpt-manifest.json") ||
         name == ".metadata";
}

}  // namespace

void add_strays(const std::string& directory, Catalog& catalog) {
  std::set<std::string> read;
  for (const File& file : catalog.files)
    if (io::parent(file.path) == directory)
      read.insert(io::base_name(file.path));
  const auto note = [&](const std::string& name, const char* what) {
    catalog.problems.push_back(
        remark("stray_file", {io::join(directory, name), {}}, "{}", what));
  };
  for (const std::string& name : io::list_directory(directory)) {
    const std::string path = io::join(directory, name);
    if (is_part(name, read)) continue;
    if (io::is_listed_directory(path)) {
      if (io::is_file(io::join(path, kConfigFile)))
        note(name, "a checkpoint of its own, which is left alone");
    } else if (name == ".metadata.tmp" || name == ".metadata.bck") {
      note(name, "is left over from a write of the index that was cut short");
    } else if (name.ends_with(".distcp")) {
      note(name, "the index does not mention it");
    } else if (io::is_listed_file(path)) {
      catalog.sidecars.push_back({name, path, *io::file_size(path)});
    }
  }
}

}  // namespace ckpt::megatron
