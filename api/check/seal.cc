// SPDX-License-Identifier: Apache-2.0
#include "api/check/seal.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"

namespace ckpt::library {
namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

// The bytes of a piece where its tensor's digest covers them as they are
// stored. Nothing for compressed ones, archives and rows apart from each other:
// their file is hashed whole.
std::optional<std::pair<uint64_t, uint64_t>> stored_range(
    const Catalog& catalog, const Tensor& tensor, const Piece& piece) {
  const File& file = catalog.files[piece.extent.file];
  if (file.codec != Codec::kRaw || piece.extent.archive != 0 ||
      !piece.extent.strides.empty())
    return std::nullopt;
  const uint64_t elements =
      piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
  const uint64_t bytes = (elements * info(tensor.dtype).bits + 7) / 8;
  return std::pair{piece.extent.offset, piece.extent.offset + bytes};
}

// For each file with tensors, their bytes; no value where not all are known.
std::map<std::string, std::optional<Ranges>> tensor_ranges(
    const Catalog& catalog) {
  std::map<std::string, std::optional<Ranges>> files;
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      auto& ranges =
          files.try_emplace(catalog.files[piece.extent.file].path, Ranges())
              .first->second;
      const auto range = stored_range(catalog, tensor, piece);
      if (!range)
        ranges.reset();
      else if (ranges)
        ranges->push_back(*range);
    }
  return files;
}

// What is around them: begin, end, begin, end …
std::vector<uint64_t> around(Ranges ranges, uint64_t size) {
  std::ranges::sort(ranges);
  std::vector<uint64_t> gaps;
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin > at) gaps.insert(gaps.end(), {at, begin});
    at = std::max(at, end);
  }
  if (at < size) gaps.insert(gaps.end(), {at, size});
  return gaps;
}

std::string root_of(const Catalog& catalog) {
  return io::is_directory(catalog.path) ? catalog.path
                                        : io::parent(catalog.path);
}

// How the names begin under which a file is written.
std::string unfinished(const std::string& name) {
  return "." + name + ".ckpt-";
}

// Of runs that were killed. Whoever holds the lock is the only one that lives.
void remove_unfinished(const std::string& path) {
  const std::string begin = unfinished(io::base_name(path));
  for (const std::string& name : io::list_directory(io::parent(path))) {
    const bool numbered =
        name.starts_with(begin) && name.size() > begin.size() &&
        name.find_first_not_of("0123456789", begin.size()) == name.npos;
    const std::string part = io::join(io::parent(path), name);
    if (numbered && io::is_file(part)) ::unlink(part.c_str());
  }
}

// Files of the checkpoint, below the directory that the manifest's names are
// relative to.
std::map<std::string, std::string> files_below(const Catalog& catalog,
                                               const std::string& root) {
  std::map<std::string, std::string> files;  // name, path
  const auto add = [&](const std::string& path) {
    if (io::base_name(path).starts_with(unfinished(std::string(kManifestName))))
      return;  // a killed run's
    if (!path.starts_with(root + "/"))
      throw unfaithful_error(
          {path, {}}, "does not lie below {}, where the manifest goes", root)
          .with_hint("seal the folder that holds all of the checkpoint");
    if (io::is_file(path)) files.emplace(path.substr(root.size() + 1), path);
  };
  for (const File& file : catalog.files)
    if (!is_decoded(file)) add(file.path);
  if (io::is_directory(catalog.path))
    for (const SourceFile& file : catalog.file_list)
      add(io::join(catalog.file_root, file.path));
  return files;
}

}  // namespace

std::string seal_path(const Catalog& catalog) {
  if (io::is_url(catalog.path))
    throw usage_error({}, "--seal writes beside a checkpoint on this machine")
        .with_hint("ckpt fetch URL DIR; ckpt verify DIR --seal");
  return manifest_path(catalog.path);
}

std::optional<Manifest> seal_of(const Catalog& catalog,
                                std::span<const Digest> digests,
                                std::span<const Problem> problems) {
  for (const Problem& problem : problems)
    if (problem.severity != Problem::Severity::kNote) return std::nullopt;
  Manifest manifest{.format = catalog.format,
                    .source_path = catalog.path,
                    .source_format = catalog.format};
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    manifest.tensors[tensor.name] = {
        .dtype = tensor.dtype, .shape = tensor.shape, .digest = digests[i]};
  }
  const auto tensors = tensor_ranges(catalog);
  for (const auto& [name, path] : files_below(catalog, root_of(catalog))) {
    const io::Handle file = io::Handle::open_read(path);
    manifest.files[name] = file.size();
    std::vector<uint64_t> gaps;  // none: all of it
    const auto found = tensors.find(path);
    if (found != tensors.end() && found->second) {
      gaps = around(*found->second, file.size());
      if (gaps.empty() && file.size() != 0) continue;  // tensors alone
      if (gaps == std::vector<uint64_t>{0, file.size()}) gaps.clear();
    }
    manifest.contents[name] = {sha256_of(file, gaps), gaps};
  }
  if (!io::is_directory(catalog.path))
    manifest.identity = identity_of(io::Handle::open_read(catalog.path));
  return manifest;
}

void write_seal(const std::string& path, const Manifest& manifest) {
  const std::string text = to_json(manifest);
  const io::TargetLock lock(path);
  remove_unfinished(path);
  const std::string part =
      io::join(io::parent(path),
               unfinished(io::base_name(path)) + std::to_string(::getpid()));
  const io::Handle file = io::Handle::create(part);
  bool named = false;
  try {
    file.write(0, std::string_view(text));
    file.sync();
    named = io::rename_new(part, path, io::RenameNew::kNothing);
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
  if (!named) {
    ::unlink(part.c_str());
    throw unfaithful_error({path, {}}, "is there, and says something else")
        .with_hint("move it away if it is of another checkpoint");
  }
  io::sync_directory(io::parent(path));
}

}  // namespace ckpt::library
