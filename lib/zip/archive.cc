// SPDX-License-Identifier: Apache-2.0
#include "lib/zip/archive.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/codec/stream.h"
#include "lib/hash/crc32.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/zip/directory.h"
#include "lib/zip/headers.h"

namespace ckpt::zip {
namespace {

// 10^7 entries; torch writes about 70 bytes for each.
constexpr uint64_t kMaxDirectory = uint64_t{1} << 30;

// The attribute by which MS-DOS, and torch's zip reader, recognise a directory.
constexpr uint32_t kDosDirectory = 0x10;

// Deflate produces at most 258 bytes from 2 bits.
constexpr uint64_t kMaxRatio = 1032;

Where where(const io::Handle& file, std::string_view name) {
  return {file.path(), text::printable(name)};
}

// Names never reach the file system here, but torch makes no name that tries to
// leave its directory, and readers disagree on one with a NUL.
void check_name(const io::Handle& file, std::string_view name) {
  if (name.empty())
    throw input_error({file.path(), {}}, "zip record without a name");
  if (name.find('\0') != name.npos)
    throw unsafe_error(where(file, name), "NUL in the name of a zip record");
  if (name.starts_with('/'))
    throw unsafe_error(where(file, name), "zip record with an absolute path");
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    if (name.substr(at, end - at) == "..")
      throw unsafe_error(where(file, name),
                         "zip record that leaves its directory");
    at = end + 1;
  }
}

// Takes the 64-bit values of an entry's fields that are all ones, in the
// fixed order: size, packed size, header offset.
void read_zip64(const io::Handle& file, std::string_view extra, Entry& entry) {
  while (extra.size() >= 4) {
    const auto id = load<uint16_t>(extra, 0);
    const auto length = load<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (length > extra.size())
      throw input_error(where(file, entry.name),
                        "zip extra field of {} bytes, {} are left", length,
                        extra.size());
    std::string_view values = extra.substr(0, length);
    extra.remove_prefix(length);
    if (id != kZip64Extra) continue;
    for (uint64_t* field :
         {&entry.size, &entry.packed_size, &entry.header_offset}) {
      if (*field != kMax32) continue;
      if (values.size() < 8)
        throw input_error(where(file, entry.name),
                          "zip64 extra field of {} bytes is too short", length);
      *field = load<uint64_t>(values, 0);
      values.remove_prefix(8);
    }
    return;
  }
}

// In a zip64 archive the disk may be in the extra field instead.
constexpr uint16_t kNoDisk = 0xffff;

void check_fields(const io::Handle& file, const Entry& entry) {
  constexpr uint16_t kRefused =
      kFlagEncrypted | kFlagPatch | kFlagStrongEncryption | kFlagMasked;
  if (entry.flags & kRefused)
    throw input_error(where(file, entry.name),
                      "zip record is encrypted or a patch (flags {:#06x})",
                      entry.flags);
  if (entry.method != kStored && entry.method != kDeflated)
    throw input_error(where(file, entry.name),
                      "zip compression method {}, only stored (0) and deflated "
                      "(8) are known",
                      entry.method)
        .with_hint("unpack the archive and zip it again with zip -0");
  if (entry.method == kStored && entry.size != entry.packed_size)
    throw input_error(where(file, entry.name),
                      "stored zip record of two sizes, {} and {} bytes",
                      entry.packed_size, entry.size);
  if (entry.method == kDeflated && entry.size / kMaxRatio > entry.packed_size)
    throw input_error(where(file, entry.name),
                      "{} deflated bytes can't hold {} bytes",
                      entry.packed_size, entry.size);
}

std::vector<Entry> read_entries(const io::Handle& file,
                                const Directory& directory) {
  if (directory.size > kMaxDirectory)
    throw unsafe_error({file.path(), {}},
                       "zip directory of {} bytes, at most {} are read",
                       directory.size, kMaxDirectory);
  if (directory.count > directory.size / kDirectoryEntrySize)
    throw input_error({file.path(), {}},
                      "zip directory of {} bytes can't hold {} entries",
                      directory.size, directory.count);
  const std::string bytes = file.read_string(directory.offset, directory.size);
  std::string_view rest = bytes;
  std::vector<Entry> entries;
  entries.reserve(directory.count);
  for (uint64_t i = 0; i < directory.count; ++i) {
    if (rest.size() < kDirectoryEntrySize ||
        load<uint32_t>(rest, 0) != kDirectorySignature)
      throw input_error(
          {file.path(), {}}, "zip directory entry {} of {} is not at byte {}",
          i, directory.count, directory.offset + directory.size - rest.size());
    const auto flags = load<uint16_t>(rest, 8);
    const uint64_t name_length = load<uint16_t>(rest, 28);
    const uint64_t extra_length = load<uint16_t>(rest, 30);
    const uint64_t length = kDirectoryEntrySize + name_length + extra_length +
                            load<uint16_t>(rest, 32);
    if (length > rest.size())
      throw input_error({file.path(), {}},
                        "zip directory entry {} runs past the directory", i);
    Entry entry{
        .name = std::string(rest.substr(kDirectoryEntrySize, name_length)),
        .header_offset = load<uint32_t>(rest, 42),
        .packed_size = load<uint32_t>(rest, 20),
        .size = load<uint32_t>(rest, 24),
        .method = load<uint16_t>(rest, 10),
        .flags = flags,
        .crc32 = load<uint32_t>(rest, 16)};
    check_name(file, entry.name);
    if (const auto disk = load<uint16_t>(rest, 34);
        disk != 0 && disk != kNoDisk)
      throw input_error(where(file, entry.name),
                        "zip record on disk {}: torch reads archives of one",
                        disk);
    read_zip64(file,
               rest.substr(kDirectoryEntrySize + name_length, extra_length),
               entry);
    check_fields(file, entry);
    // torch's reader copies nothing for it, so its content is whatever memory
    // held.
    const bool folder = (load<uint32_t>(rest, 38) & kDosDirectory) != 0 ||
                        entry.name.ends_with('/');
    if (folder && entry.size > 0)
      throw input_error(where(file, entry.name),
                        "zip record of {} bytes that is marked as a directory",
                        entry.size);
    entries.push_back(std::move(entry));
    rest.remove_prefix(length);
  }
  if (!rest.empty())
    throw input_error({file.path(), {}},
                      "zip directory: {} bytes are left after its {} entries",
                      rest.size(), directory.count);
  return entries;
}

// Local headers, read in file order. Where they are close together, one read
// fetches all of them, and ends with the last one.
class HeaderReader {
 public:
  // `order`: by header_offset.
  HeaderReader(const io::Handle& file, const std::vector<Entry*>& order)
      : file_(file),
        order_(order),
        block_(io::remote_of(file) ? kRemoteBlock : kBlock) {}

  // The header and name of order[i], which end before the next header.
  std::string_view read(size_t i) {
    const uint64_t offset = order_[i]->header_offset;
    const uint64_t count = end_of(i) - offset;
    if (offset < begin_ || offset + count > begin_ + bytes_.size()) {
      size_t last = i;
      while (last + 1 < order_.size() &&
             order_[last + 1]->header_offset - order_[last]->header_offset <
                 kDense &&
             end_of(last + 1) - offset <= block_)
        ++last;
      begin_ = offset;
      bytes_ = file_.read_string(offset,
                                 std::min(end_of(last), file_.size()) - offset);
    }
    return std::string_view(bytes_).substr(offset - begin_, count);
  }

 private:
  static constexpr uint64_t kDense = 4 << 10;
  static constexpr uint64_t kBlock = 64 << 10;
  static constexpr uint64_t kRemoteBlock = 1 << 20;  // a round trip each

  uint64_t end_of(size_t i) const {
    return order_[i]->header_offset + kLocalSize + order_[i]->name.size();
  }

  const io::Handle& file_;
  const std::vector<Entry*>& order_;
  const uint64_t block_;
  uint64_t begin_ = 0;
  std::string bytes_;
};

// Finds where the data of order[i] begin. `next` is where the next header or
// the directory begins: this entry must end before it.
void read_local_header(const io::Handle& file, HeaderReader& reader,
                       const std::vector<Entry*>& order, size_t i,
                       uint64_t next) {
  Entry& entry = *order[i];
  const uint64_t fixed = kLocalSize + entry.name.size();
  if (fixed > next - entry.header_offset)
    throw input_error(where(file, entry.name),
                      "zip record at byte {} overlaps the next one, at byte {}",
                      entry.header_offset, next);
  const std::string_view header = reader.read(i);
  if (load<uint32_t>(header, 0) != kLocalSignature)
    throw input_error(where(file, entry.name), "no zip local header at byte {}",
                      entry.header_offset);
  if (load<uint16_t>(header, 26) != entry.name.size() ||
      header.substr(kLocalSize) != entry.name)
    throw input_error(where(file, entry.name),
                      "zip local header at byte {} names another record",
                      entry.header_offset);
  if (load<uint16_t>(header, 8) != entry.method)
    throw input_error(where(file, entry.name),
                      "zip local header at byte {} says method {}, the "
                      "directory {}",
                      entry.header_offset, load<uint16_t>(header, 8),
                      entry.method);
  entry.data_offset = entry.header_offset + fixed + load<uint16_t>(header, 28);
  if (entry.data_offset > next || entry.packed_size > next - entry.data_offset)
    throw input_error(where(file, entry.name),
                      "zip record of {} bytes at byte {} runs into what begins "
                      "at byte {}",
                      entry.packed_size, entry.data_offset, next);
}

// Where torch puts data: 64-aligned after the name and an extra field as long
// as that takes, at least 4 bytes; then a descriptor if the flags say so; then
// the next header. If all that ends exactly there, no other layout of torch's
// does. False: the header must be read.
bool compute_offset(Entry& entry, uint64_t next) {
  constexpr uint64_t kAlignment = 64, kExtra = 4, kDescriptor = 16;
  // Headers of larger records have zip64 fields.
  if (entry.method != kStored || entry.size >= kMax32 ||
      entry.header_offset >= kMax32)
    return false;
  const uint64_t least =
      entry.header_offset + kLocalSize + entry.name.size() + kExtra;
  const uint64_t begin = (least + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t end =
      begin + entry.size + (entry.flags & kFlagDescriptor ? kDescriptor : 0);
  if (end != next) return false;
  entry.data_offset = begin;
  entry.computed = true;
  return true;
}

void find_data(const io::Handle& file, uint64_t directory,
               std::vector<Entry>& entries, Headers headers) {
  std::vector<Entry*> order;
  order.reserve(entries.size());
  for (Entry& entry : entries) {
    if (entry.header_offset >= directory)
      throw input_error(where(file, entry.name),
                        "zip local header at byte {}, the directory begins at "
                        "byte {}",
                        entry.header_offset, directory);
    order.push_back(&entry);
  }
  std::ranges::stable_sort(order, {},
                           [](const Entry* e) { return e->header_offset; });
  // Each header would cost a round trip. A computed offset is proven by the
  // record's checksum when its bytes pass.
  const bool far = io::remote_of(file) != nullptr;
  HeaderReader reader(file, order);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool last = i + 1 == order.size();
    const uint64_t next = last ? directory : order[i + 1]->header_offset;
    const bool computes =
        headers == Headers::kComputed || (far && order[i]->crc32 != 0);
    if (computes && compute_offset(*order[i], next)) continue;
    read_local_header(file, reader, order, i, next);
  }
}

}  // namespace

Archive Archive::read(const io::Handle& file, Headers headers) {
  const Directory directory = find_directory(file);
  Archive archive;
  archive.entries_ = read_entries(file, directory);
  const std::vector<Entry>& entries = archive.entries_;
  archive.by_name_.reserve(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto [first, fresh] = archive.by_name_.emplace(entries[i].name, i);
    if (!fresh)
      throw input_error(where(file, entries[i].name),
                        "two zip records of this name, at bytes {} and {}",
                        entries[first->second].header_offset,
                        entries[i].header_offset);
  }
  find_data(file, directory.offset, archive.entries_, headers);
  return archive;
}

const Entry* Archive::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

void check_headers(const io::Handle& file) {
  const Directory directory = find_directory(file);
  std::vector<Entry> computed = read_entries(file, directory);
  std::vector<Entry> read = computed;
  find_data(file, directory.offset, computed, Headers::kComputed);
  find_data(file, directory.offset, read, Headers::kRead);
  for (size_t i = 0; i < read.size(); ++i) {
    const Entry& is = read[i];
    const Entry& was = computed[i];
    if (is.data_offset != was.data_offset)
      throw input_error(where(file, is.name),
                        "zip local header at byte {}: data at byte {}, as the "
                        "directory has it at byte {}",
                        is.header_offset, is.data_offset, was.data_offset)
          .with_hint(
              "the file was not written by torch.save, or was changed "
              "since: copy it again");
  }
}

namespace {

codec::Stream inflated(const io::Handle& file, const Entry& entry) {
  // The handle outlives the reader, so nothing has to own it.
  const std::shared_ptr<const io::Handle> borrowed(std::shared_ptr<void>(),
                                                   &file);
  return codec::Stream(borrowed,
                       {.path = file.path(),
                        .size = entry.size,
                        .codec = Codec::kDeflate,
                        .packed_offset = entry.data_offset,
                        .packed_size = entry.packed_size},
                       entry.name);
}

void compare(const io::Handle& file, const Entry& entry, uint32_t found) {
  if (entry.crc32 == 0 || found == entry.crc32) return;
  throw input_error(where(file, entry.name),
                    "zip record has CRC-32 {:08x}, its bytes have {:08x}",
                    entry.crc32, found)
      .with_hint(
          "the bytes changed after they were written; copy or download the "
          "file again");
}

}  // namespace

Place place_entry(const Entry& entry, uint32_t file, Catalog& catalog) {
  Place place{file, entry.data_offset};
  if (entry.method != kStored) {
    place = {static_cast<uint32_t>(catalog.files.size()), 0};
    catalog.files.push_back({.path = catalog.files[file].path,
                             .size = entry.size,
                             .codec = Codec::kDeflate,
                             .packed_offset = entry.data_offset,
                             .packed_size = entry.packed_size});
  }
  if (entry.crc32 != 0)
    catalog.crcs.push_back({.file = place.file,
                            .begin = place.offset,
                            .end = place.offset + entry.size,
                            .crc32 = entry.crc32,
                            .record = entry.name});
  return place;
}

void check_entry(const io::Handle& file, const Entry& entry) {
  if (entry.crc32 == 0) return;
  std::optional<codec::Stream> reader;
  if (entry.method != kStored) reader.emplace(inflated(file, entry));
  std::vector<std::byte> block(std::min<uint64_t>(entry.size, 1 << 20));
  uint32_t sum = 0;
  for (uint64_t done = 0; done < entry.size;) {
    const auto part = std::span(block).first(
        std::min<uint64_t>(entry.size - done, block.size()));
    if (reader)
      reader->read(done, part);
    else
      file.read(entry.data_offset + done, part);
    sum = crc32(sum, part);
    done += part.size();
  }
  compare(file, entry, sum);
}

std::string read_entry(const io::Handle& file, const Entry& entry,
                       uint64_t limit) {
  if (entry.size > limit)
    throw input_error(where(file, entry.name),
                      "zip record of {} bytes, at most {} are read", entry.size,
                      limit);
  std::string content;
  if (entry.method == kStored) {
    content = file.read_string(entry.data_offset, entry.size);
  } else {
    codec::Stream reader = inflated(file, entry);
    content.resize(entry.size);
    reader.read(0, std::as_writable_bytes(std::span(content)));
  }
  compare(file, entry, crc32(0, std::as_bytes(std::span(content))));
  return content;
}

}  // namespace ckpt::zip
