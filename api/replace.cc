// SPDX-License-Identifier: Apache-2.0
#include "api/replace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "ckpt/error.h"
#include "formats/accounted.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/io/staging.h"
#include "lib/io/upload.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;

// A manifest that can't be read lists nothing.
Manifest manifest_in(const std::string& directory) {
  const std::string path = io::join(directory, kManifestName);
  try {
    if (io::is_file(path)) return read_manifest(path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
  }
  return {};
}

bool has_same_bytes(const std::string& a, const std::string& b) {
  constexpr uint64_t kBlock = 1 << 20;
  if (!io::is_file(a) || !io::is_file(b)) return false;
  const io::Handle left = io::Handle::open_read(a);
  const io::Handle right = io::Handle::open_read(b);
  if (left.size() != right.size()) return false;
  for (uint64_t at = 0; at < left.size(); at += kBlock) {
    const uint64_t part = std::min(kBlock, left.size() - at);
    if (left.read_string(at, part) != right.read_string(at, part)) return false;
  }
  return true;
}

bool is_known_file(const std::string& path) {
  return std::ranges::any_of(
      formats::all_formats(), [&](const formats::Format& format) {
        try {
          return format.reader && format.reader->supports(path).yes;
        } catch (const Error& error) {
          if (error.code() == ExitCode::kIo) throw;
          return false;
        }
      });
}

// With an empty one, nothing is lost.
void check_file(const std::string& target) {
  if (!io::is_file(target) || io::file_size(target) == 0) return;
  if (is_known_file(target)) return;
  throw unfaithful_error({target, {}},
                         "--overwrite would remove what is not a checkpoint: "
                         "no reader knows this file")
      .with_hint("choose another target, or remove the file yourself");
}

void check_directory(const Prepared& prepared) {
  constexpr size_t kMostNamed = 4;
  const std::string& target = prepared.path;
  const Manifest manifest = manifest_in(target);
  std::map<std::string_view, std::string_view> copies;
  for (const TargetFile& file : prepared.target.files)
    if (!file.copy_of.empty()) copies[file.path] = file.copy_of;
  // What the run writes there again unchanged is not lost either.
  const auto is_listed = [&](const std::string& path) {
    if (manifest.files.contains(path)) return true;
    // The claim of a run that publishes: this one's, or it will be refused.
    if (path == io::kUploadClaim && io::is_target_url(target)) return true;
    const auto copy = copies.find(path);
    return copy != copies.end() &&
           has_same_bytes(std::string(copy->second), io::join(target, path));
  };
  formats::Strangers strange = formats::find_strangers(target, is_listed);
  if (strange.names.empty()) return;
  const size_t more =
      strange.names.size() - std::min(strange.names.size(), kMostNamed);
  strange.names.resize(strange.names.size() - more);
  for (std::string& name : strange.names) name = text::printable(name);
  throw unfaithful_error(
      {target, {}},
      "--overwrite would remove what is not part of a checkpoint: {}{} ({} "
      "file{}){}",
      fmt::join(strange.names, ", "),
      more ? fmt::format(" and {} others", more) : "", strange.files,
      strange.files == 1 ? "" : "s",
      strange.why.empty() ? ""
                          : "; what is there can't be opened as one: " +
                                text::printable(strange.why))
      .with_hint("choose another target, or remove the directory yourself");
}

bool is_or_is_above(const fs::path& above, const fs::path& path) {
  return std::ranges::mismatch(above, path).in1 == above.end();
}

fs::path resolved(const std::string& path) {
  std::error_code failed;
  const fs::path found = fs::weakly_canonical(path, failed);
  return failed ? fs::path() : found;
}

}  // namespace

void check_replaceable(const Prepared& prepared) {
  // It was looked at before the first object of it appeared.
  if (io::is_target_url(prepared.path) && io::is_half_published(prepared.path))
    return;
  if (io::is_directory(prepared.path))
    check_directory(prepared);
  else
    check_file(prepared.path);
}

void check_place(const std::string& target,
                 const std::vector<std::string>& sources) {
  std::error_code failed;
  if (io::is_target_url(target) || !fs::is_directory(target, failed)) return;
  const fs::path place = resolved(target);
  const fs::path here = fs::current_path(failed);
  if (!failed && is_or_is_above(place, here))
    throw unfaithful_error({target, {}},
                           "the working directory is in it: a target is "
                           "written beside its name and takes its place")
        .with_hint("choose a name of its own for the target");
  // A target in its own place is left to the other checks.
  for (const std::string& source : sources)
    if (!source.empty() && resolved(source) == place) return;
  for (const std::string& source : sources) {
    const fs::path from = source.empty() ? fs::path() : resolved(source);
    if (from.empty() || !is_or_is_above(place, from)) continue;
    throw unfaithful_error({target, {}},
                           "the source is in it, and would be removed: {}",
                           text::printable(source))
        .with_hint("choose a name of its own for the target");
  }
}

}  // namespace ckpt::library
