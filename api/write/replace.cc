// SPDX-License-Identifier: Apache-2.0
#include "api/write/replace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "ckpt/error.h"
#include "formats/accounted.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/io/note.h"
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
    return copy != copies.end() && io::has_same_bytes(std::string(copy->second),
                                                      io::join(target, path));
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

// What is written from memory: a configuration with another dtype.
bool holds_literals(const TargetFile& file, const std::string& path) {
  uint64_t known = 0;
  for (const Literal& literal : file.literals) known += literal.bytes.size();
  if (known != file.size || io::file_size(path) != file.size) return false;
  const io::Handle there = io::Handle::open_read(path);
  return std::ranges::all_of(file.literals, [&](const Literal& literal) {
    return there.read_string(literal.offset, literal.bytes.size()) ==
           literal.bytes;
  });
}

// The manifest of a file that is gone may be replaced.
void check_manifest_place(const std::string& path, bool overwrite) {
  if (overwrite || !io::is_file(path) || io::file_size(path) == 0 ||
      io::has_mark(path, io::kManifestMark))
    return;
  throw unfaithful_error({path, {}},
                         "is in the way, and is not a manifest of ckpt")
      .with_hint(
          "choose another target, leave the manifest out with --no-manifest, "
          "or replace what is in the way with --overwrite");
}

bool is_source(const Catalog& source, const std::string& path) {
  const auto is_path = [&](const auto& file) {
    return io::is_same_file(file.path, path);
  };
  return std::ranges::any_of(source.files, is_path) ||
         std::ranges::any_of(source.sidecars, is_path);
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

void check_beside(const Prepared& prepared, const SaveOptions& options) {
  const bool overwrite = options.overwrite;
  if (!prepared.single_file) return;
  if (options.manifest)
    check_manifest_place(prepared.path + std::string(kManifestName), overwrite);
  if (io::is_target_url(prepared.path) && io::is_half_published(prepared.path))
    return;
  const std::string above = io::parent(prepared.path);
  for (const TargetFile& file : prepared.target.files) {
    if (file.path.empty()) continue;
    const std::string path = io::join(above, file.path);
    const bool there =
        io::is_target_url(path)
            ? io::look_at_target(path) != io::Standing::kNothing
            : io::is_file(path) || io::is_directory(path) || io::is_link(path);
    if (!there ||
        (file.copy_of.empty() ? holds_literals(file, path)
                              : io::has_same_bytes(file.copy_of, path)))
      continue;
    const bool kept = is_source(prepared.source, path);
    if (overwrite && !kept && io::is_file(path) && !io::is_link(path)) continue;
    throw unfaithful_error({path, {}},
                           "is in the way: {} gets a file of this name beside "
                           "it, with other bytes",
                           text::printable(prepared.path))
        .with_hint(kept ? "it belongs to the source, and stays as it is: "
                          "choose a target in another directory"
                        : "choose a target in a directory of its own, or "
                          "replace what is in the way with --overwrite");
  }
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
