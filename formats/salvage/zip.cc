// SPDX-License-Identifier: Apache-2.0
// Repairs a torch.save zip that was cut, or lost its directory, or has records
// that don't match their checksums.
#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/storages.h"
#include "formats/salvage/repair.h"
#include "formats/salvage/zip_scan.h"
#include "lib/hash/crc32.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"
#include "lib/zip/archive.h"

namespace ckpt::salvage {
namespace {

constexpr uint64_t kMostContent = uint64_t{1} << 30;

// A record, as far as it can be read.
struct Found {
  ScannedRecord record;
  bool whole = false;
  std::string content;  // if deflated
};

// Decides whether a record is whole: it matches one of its checksums or, if it
// has none, is all there.
Found judge(const io::Handle& file, ScannedRecord record) {
  Found found{.record = std::move(record)};
  const ScannedRecord& r = found.record;
  if (!r.ends || (r.method == zip::kStored && r.size != r.packed_size))
    return found;
  std::vector<uint32_t> crcs = r.crcs;
  std::erase(crcs, 0u);
  if (r.method != zip::kStored) {
    zip::Entry entry{.name = r.name,
                     .data_offset = r.data_offset,
                     .packed_size = r.packed_size,
                     .size = r.size,
                     .method = r.method};
    try {
      found.content = zip::read_entry(file, entry, kMostContent);
    } catch (const Error&) {
      return found;
    }
    const uint32_t crc = crc32(0, std::as_bytes(std::span(found.content)));
    found.whole = crcs.empty() || std::ranges::count(crcs, crc);
    return found;
  }
  found.whole =
      crcs.empty() ||
      std::ranges::count(crcs,
                         crc_of(file, {r.data_offset, r.data_offset + r.size}));
  return found;
}

// What a small record of torch's held, if its checksum tells: the byte order
// must not be taken for the usual one.
std::optional<std::string> constant_of(const ScannedRecord& record) {
  for (const std::string_view text : {"little", "big", "3\n", "1", "64"}) {
    const uint32_t crc = crc32(0, std::as_bytes(std::span(text)));
    if (record.size == text.size() && std::ranges::count(record.crcs, crc))
      return std::string(text);
  }
  return std::nullopt;
}

ScannedRecord as_scanned(const zip::Entry& entry) {
  return {.name = entry.name,
          .data_offset = entry.data_offset,
          .packed_size = entry.packed_size,
          .size = entry.size,
          .method = entry.method,
          .crcs = {entry.crc32}};
}

// Uses the directory, if it can be read; then nothing else needs to be searched
// for.
std::optional<std::vector<Found>> by_directory(const io::Handle& file) {
  std::vector<Found> found;
  try {
    const zip::Archive archive = zip::Archive::read(file);
    for (const zip::Entry& entry : archive.entries())
      found.push_back(judge(file, as_scanned(entry)));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return std::nullopt;
  }
  return found;
}

class Rebuilder {
 public:
  Rebuilder(const io::Handle& file, std::vector<Found> found)
      : file_(file), found_(std::move(found)) {
    for (const Found& record : found_)
      if (record.record.name.ends_with("/data.pkl"))
        root_ = record.record.name.substr(0, record.record.name.find('/'));
    if (root_.empty() && !found_.empty())
      root_ = found_[0].record.name.substr(0, found_[0].record.name.find('/'));
  }

  Repair run() {
    read_pickle();
    for (const Found& found : found_) add(found);
    add_lost();
    if (!has("version") && !has(".data/version")) {
      records_.push_back({.name = "version", .size = 2, .content = "3\n"});
      note("the version is taken to be 3", true);
    }
    return lay_out();
  }

 private:
  void note(std::string what, bool inferred = false) {
    repair_.notes.push_back({.what = std::move(what), .inferred = inferred});
  }
  bool has(std::string_view name) const {
    return std::ranges::any_of(
        records_, [name](const zip::Record& r) { return r.name == name; });
  }
  std::string content_of(const Found& found) const {
    if (found.record.method != zip::kStored) return found.content;
    if (found.record.size > kMostContent)
      throw input_error({file_.path(), found.record.name}, "record of {} bytes",
                        found.record.size);
    return file_.read_string(found.record.data_offset, found.record.size);
  }

  // Finds which storages there are, and how large.
  void read_pickle() {
    const std::string name = root_ + "/data.pkl";
    const auto found = std::ranges::find_if(
        found_, [&](const Found& f) { return f.record.name == name; });
    if (found == found_.end() || !found->whole)
      throw input_error({file_.path(), {}},
                        "record data.pkl is {}: what the file holds can't be "
                        "known",
                        found == found_.end() ? "lost" : "damaged");
    const std::string bytes = content_of(*found);
    const auto decoded =
        pickle::decode(std::as_bytes(std::span(bytes)), file_.path());
    std::vector<Problem> ignored;
    torch::collect_storages(
        *decoded.document, 5, [](pickle::Id) { return false; }, storages_,
        ignored);
  }

  std::optional<uint64_t> declared(std::string_view record) const {
    for (const torch::Storage& storage : storages_.all)
      if ("data/" + storage.key == record) return storage.declared;
    return std::nullopt;
  }

  void add(const Found& found) {
    const ScannedRecord& record = found.record;
    if (!record.name.starts_with(root_ + "/")) return;
    const std::string name = record.name.substr(root_.size() + 1);
    if (name.empty() || has(name)) return;
    const auto bytes = declared(name);
    if (!bytes) {  // not a storage: a small record, or an unneeded one
      const auto constant = found.whole ? std::nullopt : constant_of(record);
      if (constant)
        records_.push_back(
            {.name = name, .size = constant->size(), .content = *constant});
      else if (found.whole)
        records_.push_back(
            {.name = name, .size = record.size, .content = content_of(found)});
      else if (name == "byteorder")
        throw input_error({file_.path(), {}},
                          "record byteorder is damaged: in which order the "
                          "bytes of values are can't be known");
      else
        note(fmt::format("record {} is damaged and left out",
                         text::printable(name)));
      return;
    }
    if (found.whole && record.method != zip::kStored) {
      records_.push_back(
          {.name = name, .size = record.size, .content = found.content});
      return;
    }
    const uint64_t size = found.whole ? std::max(*bytes, record.size) : *bytes;
    // If a record was cut, what is past the cut is gone; what is before it no
    // longer has a checksum, but is there. If the file continues after the
    // record, it was not cut: its checksum was overwritten, and perhaps the
    // record with it.
    constexpr uint64_t kDescriptor = 24;
    const bool open = !record.ends && record.method == zip::kStored &&
                      record.data_offset < file_.size();
    const bool cut =
        open && file_.size() - record.data_offset < size + kDescriptor;
    const uint64_t here =
        found.whole ? record.size
        : cut       ? std::min(size, file_.size() - record.data_offset)
                    : 0;
    if (!found.whole)
      note(fmt::format(
          "record {} {}", text::printable(name),
          cut    ? fmt::format("is cut: {} of {} bytes are there", here, size)
          : open ? "has lost its checksum, what stands behind it is damaged"
                 : "is not what its checksum says"));
    sources_.emplace(records_.size(), std::pair(record.data_offset, here));
    records_.push_back({.name = name, .size = size});
  }

  void add_lost() {
    uint64_t lost = 0, bytes = 0;
    for (const torch::Storage& storage : storages_.all) {
      const std::string name = "data/" + storage.key;
      if (has(name)) continue;
      ++lost;
      bytes += storage.declared;
      sources_.emplace(records_.size(), std::pair(uint64_t{0}, uint64_t{0}));
      records_.push_back({.name = name, .size = storage.declared});
    }
    if (lost)
      note(fmt::format("{} with {} bytes: lost", text::counted(lost, "storage"),
                       bytes));
  }

  Repair lay_out() {
    zip::PlannedArchive plan = zip::plan_archive(root_, records_);
    repair_.size = plan.size;
    repair_.literals = std::move(plan.literals);
    repair_.crcs = std::move(plan.crcs);
    for (const auto& [index, source] : sources_) {
      const uint64_t at = plan.data_offsets[index];
      const auto [from, here] = source;
      if (here) repair_.copies.push_back({file_.path(), from, at, here});
      if (here < records_[index].size)
        repair_.gone.push_back({at + here, at + records_[index].size});
    }
    repair_.gone = normalized(std::move(repair_.gone));
    return std::move(repair_);
  }

  const io::Handle& file_;
  std::vector<Found> found_;
  std::string root_;
  torch::Storages storages_;
  std::vector<zip::Record> records_;
  // Storages by index in records_: where their bytes are, and how many.
  std::map<size_t, std::pair<uint64_t, uint64_t>> sources_;
  Repair repair_;
};

}  // namespace

std::optional<Repair> repair_zip(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  auto found = by_directory(file);
  if (found && std::ranges::all_of(*found, &Found::whole)) return std::nullopt;
  const bool directory = found.has_value();
  if (!found) {
    found.emplace();
    for (ScannedRecord& record : scan_records(file))
      found->push_back(judge(file, std::move(record)));
  }
  Repair repair = Rebuilder(file, std::move(*found)).run();
  repair.notes.insert(
      repair.notes.begin(),
      {.what = directory ? "rebuilt without what its checksums reject"
                         : "the directory is rebuilt from local headers"});
  return repair;
}

}  // namespace ckpt::salvage
