// SPDX-License-Identifier: Apache-2.0
#include "api/contents.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/stray.h"
#include "lib/crc32.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/zip/archive.h"

namespace ckpt::library {
namespace {

// What a file has beside tensors, as a manifest has it: begins and ends of what
// was laid out with literals. No pieces: those of large plans are gone.
std::vector<uint64_t> around_tensors(const TargetFile& file) {
  std::vector<std::pair<uint64_t, uint64_t>> parts;
  parts.reserve(file.literals.size() + file.shared.size() +
                file.carried.size());
  for (const Literal& literal : file.literals)
    parts.emplace_back(literal.offset, literal.offset + literal.bytes.size());
  for (const SharedLiteral& literal : file.shared)
    parts.emplace_back(literal.offset, literal.offset + literal.bytes->size());
  for (const CarriedRange& range : file.carried)
    parts.emplace_back(range.offset, range.offset + range.size);
  std::ranges::sort(parts);
  std::vector<uint64_t> ranges;
  for (const auto& [begin, end] : parts) {
    if (begin == end) continue;
    if (!ranges.empty() && ranges.back() == begin)
      ranges.back() = end;
    else
      ranges.insert(ranges.end(), {begin, end});
  }
  return ranges;
}

// A .distcp file is one zip after another; the whole is not a zip.
bool is_zip(const io::Handle& file) {
  return !file.path().ends_with(".distcp") && file.size() >= 22 &&
         file.read_string(0, 4) == "PK\3\4";
}

}  // namespace

void add_contents(const Prepared& prepared, const std::string& root,
                  Manifest& manifest) {
  const Target& target = prepared.target;
  for (const TargetFile& file : target.files) {
    std::vector<uint64_t> ranges;  // none: all of it
    if (file.copy_of.empty()) {
      ranges = around_tensors(file);
      if (ranges.empty() && file.size) continue;  // tensors and nothing else
      if (ranges == std::vector<uint64_t>{0, file.size}) ranges.clear();
    }
    const io::Handle handle = io::Handle::open_read(io::join(root, file.path));
    manifest.contents[file.path] = {sha256_of(handle, ranges), ranges};
  }
  if (prepared.single_file)
    manifest.identity = identity_of(
        io::Handle::open_read(io::join(root, target.files.front().path)));
}

void check_stored_crcs(const io::Handle& file) {
  if (!is_zip(file)) return;
  std::vector<std::byte> block(1 << 20);
  const zip::Archive archive = zip::Archive::read(file);
  for (const zip::Entry& entry : archive.entries()) {
    if (entry.method != zip::kStored || entry.crc32 == 0) continue;
    uint32_t sum = 0;
    for (uint64_t done = 0; done < entry.size;) {
      const auto part = std::span(block).first(
          std::min<uint64_t>(entry.size - done, block.size()));
      file.read(entry.data_offset + done, part);
      sum = crc32(sum, part);
      done += part.size();
    }
    if (sum != entry.crc32)
      throw input_error({file.path(), {}},
                        "record {} has CRC-32 {:08x}, the archive says {:08x}",
                        entry.name, sum, entry.crc32)
          .with_hint("copy or download the file again");
  }
}

namespace {

// A link of one's own beside the step ("best"), or what is no part of it, does
// not damage it.
void add_unreadable(Catalog& catalog, const SourceFile& file,
                    const std::string& path, const Error& error) {
  const bool nowhere = io::leads_nowhere(path);
  std::erase_if(catalog.problems, [&](const Problem& problem) {
    return problem.kind == "broken_link" && problem.file == path;
  });
  const bool beside = nowhere && !path.starts_with(catalog.path + "/");
  if (beside || formats::is_stray(file, path))
    catalog.problems.push_back(warning(
        nowhere ? "broken_link" : "special_file", {path, {}}, "{}; it {}",
        nowhere ? "leads nowhere" : error.problem(),
        beside ? "lies beside what was opened" : "belongs to no checkpoint"));
  else
    catalog.problems.push_back(damage(nowhere ? "missing_file" : "damaged",
                                      {path, {}}, "{}", error.problem()));
}

}  // namespace

void add_carried_crcs(Catalog& catalog) {
  std::unordered_set<std::string> known;
  for (const File& file : catalog.files) known.insert(file.path);
  std::vector<std::string> carried;
  std::vector<const SourceFile*> listed;
  for (const SourceFile& file : catalog.file_list) {
    std::string path = io::join(catalog.file_root, file.path);
    if (known.contains(path)) continue;
    carried.push_back(std::move(path));
    listed.push_back(&file);
  }
  io::FilesAhead ahead(carried);
  for (size_t i = 0; i < carried.size(); ++i) {
    const std::string& path = carried[i];
    ahead.reach(i);
    try {
      if (!io::is_file(path)) continue;
      const io::Handle file = io::Handle::open_read(path);
      if (!is_zip(file)) continue;
      const auto id = static_cast<uint32_t>(catalog.files.size());
      const zip::Archive archive = zip::Archive::read(file);
      for (const zip::Entry& entry : archive.entries())
        if (entry.method == zip::kStored && entry.crc32 != 0)
          catalog.crcs.push_back({id, entry.data_offset,
                                  entry.data_offset + entry.size, entry.crc32,
                                  entry.name});
      catalog.files.push_back({.path = path, .size = file.size()});
    } catch (const Error& error) {
      add_unreadable(catalog, *listed[i], path, error);
    }
  }
}

}  // namespace ckpt::library
