// SPDX-License-Identifier: Apache-2.0
#include "api/check/manifest_check.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "api/check/integrity.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/io/file.h"

namespace ckpt::library {

std::string first_file(const Catalog& catalog, const Tensor& tensor) {
  return tensor.pieces.empty()
             ? catalog.path
             : catalog.files[tensor.pieces[0].extent.file].path;
}

ManifestCheck::ManifestCheck(std::string path, std::string root)
    : path_(std::move(path)),
      root_(std::move(root)),
      manifest_(read_manifest(path_)) {}

std::vector<Problem> ManifestCheck::files() const {
  std::vector<Problem> problems;
  for (const auto& [name, content] : manifest_.contents) {
    if (!content.unproven.empty()) continue;
    const std::string full = io::join(root_, name);
    try {
      if (io::file_size(full) != manifest_.files.at(name)) continue;  // told
      const io::Handle file = io::Handle::open_read(full);
      const std::string found = sha256_of(file, content.ranges);
      if (found != content.sha256)
        problems.push_back(damage(
            "file_digest", {full, {}}, "{} SHA-256 {}, it was written with {}",
            content.ranges.empty() ? "the content has"
                                   : "what is around the tensors has",
            found, content.sha256));
    } catch (const std::out_of_range&) {
      problems.push_back(damage("manifest", {path_, {}},
                                "a file has a digest and no size: {}", name));
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) throw;
      problems.push_back(problem_of(error, "damaged"));
    }
  }
  return problems;
}

std::vector<Problem> ManifestCheck::tensors(const Catalog& catalog,
                                            const Reading& reading,
                                            const Edits& edits,
                                            bool selected) const {
  std::vector<Problem> problems;
  for (const auto& [file, size] : manifest_.files) {
    const std::string full = io::join(root_, file);
    const auto now = io::file_size(full);
    if (!now)
      problems.push_back(damage("missing_file", {full, {}},
                                "the manifest lists it, it is not there"));
    else if (*now != size)
      problems.push_back(damage("file_size", {full, {}},
                                "{} bytes, it was written with {}", *now,
                                size));
  }
  std::set<std::string_view> seen;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    const Edit edit = edit_of(edits, tensor.name);
    auto entry = manifest_.tensors.find(edit.stored);
    // A trainer's reader names state by its parameter, its file does not.
    if (entry == manifest_.tensors.end() && tensor.kind == Kind::optim)
      entry = manifest_.tensors.find("optimizer.state." + edit.stored);
    seen.insert(entry == manifest_.tensors.end() ? tensor.name : entry->first);
    if (entry == manifest_.tensors.end()) {
      if (!is_listed_content(catalog, tensor))
        problems.push_back(warning("unlisted_tensor", {path_, tensor.name},
                                   "the manifest does not list it"));
    } else if (entry->second.unproven.empty() &&
               entry->second.digest != reading.digests[i] && !edit.cut &&
               !(selected && is_part(tensor.shape, entry->second))) {
      problems.push_back(
          damage("digest", {first_file(catalog, tensor), tensor.name},
                 "the content has digest {}, it was written with {}",
                 reading.digests[i].hex(), entry->second.digest.hex()));
    }
  }
  if (selected) return problems;
  for (const auto& [name, entry] : manifest_.tensors)
    if (!seen.contains(name))
      problems.push_back(
          damage("missing_tensor", {path_, name},
                 "the manifest lists it, the checkpoint does not hold it"));
  return problems;
}

// True for one that went along with its file's bytes: those that no listed
// tensor has are compared as the file's.
bool ManifestCheck::is_listed_content(const Catalog& catalog,
                                      const Tensor& tensor) const {
  return std::ranges::all_of(tensor.pieces, [&](const Piece& piece) {
    const std::string& file = catalog.files[piece.extent.file].path;
    return file.starts_with(root_ + "/") &&
           manifest_.contents.contains(file.substr(root_.size() + 1));
  });
}

std::vector<Problem> ManifestCheck::unproven(
    const std::string& checkpoint) const {
  std::vector<Problem> problems;
  const auto tell = [&](const Where& where, const std::string& why) {
    if (!why.empty())
      problems.push_back(
          damage("unproven", where, "was written unproven: {}", why));
  };
  for (const auto& [name, tensor] : manifest_.tensors)
    tell({checkpoint, name}, tensor.unproven);
  for (const auto& [name, content] : manifest_.contents)
    tell({io::join(root_, name), {}}, content.unproven);
  return problems;
}

std::vector<Problem> manifest_itself(const std::string& path,
                                     const Catalog& catalog) {
  std::vector<Problem> problems;
  const std::string manifest = manifest_path(path);
  if (io::is_directory(manifest))
    problems.push_back(damage("manifest", {manifest, {}}, "is a directory"));
  if (!io::is_directory(path) || !io::is_file(manifest)) return problems;
  const Manifest listed = read_manifest(manifest);
  if (catalog.file_root != path) return problems;
  for (const SourceFile& file : catalog.file_list)
    if (!listed.files.contains(file.path))
      problems.push_back(
          remark("unlisted_file", {io::join(path, file.path), {}},
                 "the manifest does not list it: it came later"));
  return problems;
}

}  // namespace ckpt::library
