// SPDX-License-Identifier: Apache-2.0
#include "api/contents.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/stray.h"
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
    if (file.copy_of.empty() && !prepared.known) {
      ranges = around_tensors(file);
      if (ranges.empty() && file.size) continue;  // tensors and nothing else
      if (ranges == std::vector<uint64_t>{0, file.size}) ranges.clear();
    }
    if (const auto why = prepared.unproven.files.find(file.path);
        why != prepared.unproven.files.end()) {
      manifest.contents[file.path] = {.unproven = why->second};
      continue;
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
  const zip::Archive archive = zip::Archive::read(file);
  for (const zip::Entry& entry : archive.entries())
    zip::check_entry(file, entry);
}

namespace {

bool is_within(const zip::Entry& entry, uint64_t begin, uint64_t end) {
  return entry.data_offset >= begin && entry.data_offset <= end &&
         entry.packed_size <= end - entry.data_offset;
}

// Checks what a range of a source's file holds: records of the archive that the
// file is, or an archive of its own. A range that ends inside an item has
// tensors behind it, with which the rest is checked.
class CarriedCheck {
 public:
  explicit CarriedCheck(const Catalog& source) : source_(source) {
    for (const Object& object : source.objects)
      if (object.bytes > 0)
        items_.emplace(object.file, object.offset, object.bytes);
  }

  void check(const CarriedRange& range) {
    if (!file_ || range.source_file != index_) open(range.source_file);
    const uint64_t begin = range.source_offset, end = begin + range.size;
    if (!entries_.empty()) {
      for (const zip::Entry& entry : entries_)
        if (is_within(entry, begin, end)) zip::check_entry(*file_, entry);
    } else if (range.size >= 22 && file_->read_string(begin, 4) == "PK\3\4") {
      const io::Handle item = file_->slice(begin, range.size);
      const bool whole = items_.contains({index_, begin, range.size});
      for (const zip::Entry& entry : entries_of(item, whole))
        zip::check_entry(item, entry);
    }
  }

 private:
  // `whole`: it is an archive, so one that can't be read is damaged.
  static std::vector<zip::Entry> entries_of(const io::Handle& file,
                                            bool whole) {
    try {
      const zip::Archive archive = zip::Archive::read(file);
      return {archive.entries().begin(), archive.entries().end()};
    } catch (const Error& error) {
      if (whole || error.code() == ExitCode::kIo) throw;
      return {};
    }
  }

  // Items back to back look like an archive from the front, and are none.
  void open(uint32_t index) {
    index_ = index;
    file_.emplace(io::Handle::open_read(source_.files.at(index).path));
    entries_.clear();
    if (is_zip(*file_)) entries_ = entries_of(*file_, false);
  }

  const Catalog& source_;
  std::set<std::tuple<uint32_t, uint64_t, uint64_t>> items_;
  uint32_t index_ = 0;
  std::optional<io::Handle> file_;
  std::vector<zip::Entry> entries_;  // of a file that is one archive
};

}  // namespace

void check_carried(const Catalog& source, const TargetFile& file) {
  CarriedCheck checked(source);
  for (const CarriedRange& range : file.carried) checked.check(range);
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

namespace {

// Adds the records of an archive that are in no list yet. `id`: the archive's
// number among the files.
void add_records(const io::Handle& file, uint32_t id, Catalog& catalog) {
  std::set<std::string_view> known;
  for (const StoredCrc& crc : catalog.crcs)
    if (catalog.files[crc.file].path == file.path()) known.insert(crc.record);
  const zip::Archive archive = zip::Archive::read(file);
  std::vector<StoredCrc> added;
  for (const zip::Entry& entry : archive.entries()) {
    if (entry.crc32 == 0 || known.contains(entry.name)) continue;
    StoredCrc crc{id, entry.data_offset, entry.data_offset + entry.size,
                  entry.crc32, entry.name};
    if (entry.method != zip::kStored) {
      crc = {static_cast<uint32_t>(catalog.files.size()), 0, entry.size,
             entry.crc32, entry.name};
      catalog.files.push_back({.path = file.path(),
                               .size = entry.size,
                               .codec = Codec::kDeflate,
                               .packed_offset = entry.data_offset,
                               .packed_size = entry.packed_size});
    }
    added.push_back(std::move(crc));
  }
  catalog.crcs.insert(catalog.crcs.end(),
                      std::make_move_iterator(added.begin()),
                      std::make_move_iterator(added.end()));
}

}  // namespace

void add_carried_crcs(Catalog& catalog) {
  std::map<std::string, uint32_t> known;
  for (uint32_t i = 0; i < catalog.files.size(); ++i)
    if (catalog.files[i].codec == Codec::kRaw)
      known.emplace(catalog.files[i].path, i);
  std::vector<std::string> paths;
  std::vector<const SourceFile*> listed;
  for (const SourceFile& file : catalog.file_list) {
    paths.push_back(io::join(catalog.file_root, file.path));
    listed.push_back(&file);
  }
  io::FilesAhead ahead(paths);
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    ahead.reach(i);
    const auto at = known.find(path);
    try {
      if (!io::is_file(path)) continue;
      const io::Handle file = io::Handle::open_read(path);
      if (!is_zip(file)) continue;
      auto id = static_cast<uint32_t>(catalog.files.size());
      if (at != known.end())
        id = at->second;
      else
        catalog.files.push_back({.path = path, .size = file.size()});
      add_records(file, id, catalog);
    } catch (const Error& error) {
      if (at == known.end()) add_unreadable(catalog, *listed[i], path, error);
    }
  }
}

}  // namespace ckpt::library
