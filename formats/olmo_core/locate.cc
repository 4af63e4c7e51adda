// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/locate.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>

#include "ckpt/error.h"
#include "formats/olmo_core/olmo_core.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::olmo_core {
namespace {

using text::printable;

constexpr std::string_view kData = ".distcp";
constexpr std::string_view kStarted = ".metadata.tmp";
constexpr std::string_view kTemporary = "-tmp";
constexpr uint64_t kMostNote = 64 << 10;

// Whether the bytes name the class of items, and if so, whether it is
// OLMo-core's. A pickle names it once, by strings that are memoized (protocol
// 4) or not, or on two lines (protocol 2).
std::optional<bool> names_class(std::string_view bytes) {
  constexpr std::string_view kClass = "_StorageInfo";
  constexpr std::string_view kBefore[] = {"\x94\x8c\x0c", "\x8c\x0c", "\n"};
  const char* const end = bytes.data() + bytes.size();
  const char* at = bytes.data();
  // memmem skips ahead; string_view::find stops at every '_'.
  while (const void* found = ::memmem(at, static_cast<size_t>(end - at),
                                      kClass.data(), kClass.size())) {
    at = static_cast<const char*>(found);
    const std::string_view before(bytes.data(),
                                  static_cast<size_t>(at - bytes.data()));
    for (const std::string_view opcodes : kBefore) {
      if (!before.ends_with(opcodes)) continue;
      const std::string_view module =
          before.substr(0, before.size() - opcodes.size());
      if (module.ends_with("olmo_core.distributed.checkpoint.filesystem"))
        return true;
      if (module.ends_with("torch.distributed.checkpoint.filesystem"))
        return false;
    }
    at += kClass.size();
  }
  return std::nullopt;
}

// The whole index is read later; here its bytes are only searched, up to the
// first item.
bool index_names_class(const std::string& path) {
  constexpr uint64_t kBlock = 1 << 20;
  constexpr uint64_t kOverlap = 128;
  const io::Handle file = io::Handle::open_read(path);
  std::string bytes;
  for (uint64_t at = 0; at < file.size(); at += kBlock) {
    bytes.resize(std::min(kBlock + kOverlap, file.size() - at));
    file.read(at, std::as_writable_bytes(std::span(bytes)));
    if (const auto ours = names_class(bytes)) return *ours;
  }
  return false;
}

// True for data files of a save without an index.
bool has_leftovers(const std::string& directory) {
  return std::ranges::any_of(io::list_directory(directory),
                             [](const std::string& name) {
                               return name == kStarted || name.ends_with(kData);
                             });
}

// For a directory that is a checkpoint itself.
Found look_at(const std::string& path) {
  const std::string below = io::join(path, kDataFolder);
  if (io::is_directory(below)) {
    if (io::is_file(io::join(below, kIndex)))
      return {.why = "holds model_and_optim/.metadata",
              .home = path,
              .data = below,
              .finished = true};
    if (has_leftovers(below))
      return {.why = "holds an unfinished model_and_optim",
              .home = path,
              .data = below};
  }
  const bool by_name = io::base_name(path) == kDataFolder;
  const std::string index = io::join(path, kIndex);
  if (!io::is_file(index)) {
    if (by_name && has_leftovers(path))
      return {
          .why = "an unfinished model_and_optim", .home = path, .data = path};
    return {.why = "no model_and_optim/.metadata in it"};
  }
  Found found{.why = {}, .home = path, .data = path, .finished = true};
  if (by_name)
    found.why = "is a model_and_optim with .metadata";
  else if (note_version(path))
    found.why = "holds .metadata and .metadata.json";
  else if (index_names_class(index))
    found.why = "its .metadata names OLMo-core's _StorageInfo";
  else
    return {.why = "its .metadata does not name OLMo-core"};
  return found;
}

struct Step {
  uint64_t number = 0;
  bool temporary = false;
};

// step1000, step1000-tmp
std::optional<Step> step_of(std::string_view name) {
  constexpr std::string_view kWord = "step";
  if (!name.starts_with(kWord)) return std::nullopt;
  name.remove_prefix(kWord.size());
  Step step;
  if (name.ends_with(kTemporary)) {
    step.temporary = true;
    name.remove_suffix(kTemporary.size());
  }
  const auto number = text::number(name);
  if (!number) return std::nullopt;
  step.number = *number;
  return step;
}

// Finds the newest complete checkpoint below, or the newest unfinished one.
Found follow(const std::string& path) {
  std::map<uint64_t, std::string> steps;
  std::map<uint64_t, std::string> temporary;
  for (const std::string& name : io::list_directory(path)) {
    const auto step = step_of(name);
    if (step && io::is_directory(io::join(path, name)))
      (step->temporary ? temporary : steps)[step->number] = name;
  }
  Found found{.why = "no step<N> with a checkpoint of OLMo-core in it"};
  std::map<uint64_t, Found> unfinished;
  uint64_t newest = 0;
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    Found below = look_at(io::join(path, at->second));
    below.chosen = at->second;
    if (below.home.empty()) continue;
    if (below.finished) {
      newest = at->first;
      found = std::move(below);
      break;
    }
    unfinished.emplace(at->first, std::move(below));
  }
  for (const auto& [number, name] : temporary) {
    if (unfinished.contains(number)) continue;
    Found below = look_at(io::join(path, name));
    below.chosen = name;
    if (!below.home.empty()) unfinished.emplace(number, std::move(below));
  }
  if (found.home.empty() && !unfinished.empty()) {
    found = std::move(unfinished.rbegin()->second);
    found.why = "holds " + printable(found.chosen) + ", an unfinished save";
    found.finished = false;
    return found;
  }
  if (found.home.empty()) return found;
  for (const auto& [number, below] : unfinished)
    if (number > newest) found.unfinished.push_back(below.chosen);
  found.why = "holds " + printable(found.chosen);
  return found;
}

Found locate_directory(const std::string& path) {
  Found found = look_at(path);
  if (!found.home.empty() || io::is_file(io::join(path, kIndex))) return found;
  Found below = follow(path);
  if (below.home.empty()) return found;
  return below;
}

}  // namespace

std::optional<std::string> note_version(const std::string& directory) {
  const std::string path = io::join(directory, kNote);
  if (!io::is_file(path)) return std::nullopt;
  try {
    const auto note = text::parse_json(io::read_file(path, kMostNote), path);
    return text::string_member(note, "version", path);
  } catch (const Error&) {
    return std::nullopt;  // then the index must tell
  }
}

bool is_part_name(const std::string& name) {
  return name == kIndex || (name.starts_with("__") && name.ends_with(kData));
}

Found locate(const std::string& path) {
  try {
    if (io::is_directory(path)) return locate_directory(path);
    if (!is_part_name(io::base_name(path)))
      return {.why = "not a directory with a model_and_optim"};
    return look_at(io::parent(path));
  } catch (const Error& error) {
    // What can't be read is for another format to explain.
    return {.why = error.problem()};
  }
}

}  // namespace ckpt::olmo_core
