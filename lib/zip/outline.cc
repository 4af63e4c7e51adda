// SPDX-License-Identifier: Apache-2.0
#include "lib/zip/outline.h"

#include <algorithm>
#include <cstring>

#include "lib/zip/directory.h"
#include "lib/zip/headers.h"

namespace ckpt::zip {
namespace {

// Ranges at most this far apart are read together.
constexpr uint64_t kNear = 4 << 10;

uint64_t entry_length(std::string_view directory, uint64_t at) {
  return kDirectoryEntrySize + load<uint16_t>(directory, at + 28) +
         load<uint16_t>(directory, at + 30) +
         load<uint16_t>(directory, at + 32);
}

// Removes the checksums, leaving only whether each is present.
std::vector<uint32_t> take_crcs(std::string& directory,
                                std::span<const uint64_t> at) {
  std::vector<uint32_t> crcs;
  crcs.reserve(at.size());
  for (const uint64_t offset : at) {
    crcs.push_back(load<uint32_t>(directory, offset));
    const uint32_t present = crcs.back() != 0;
    std::memcpy(directory.data() + offset, &present, sizeof present);
  }
  return crcs;
}

}  // namespace

std::vector<std::vector<uint64_t>> crc_places(const io::Handle& file,
                                              const Archive& archive) {
  const Directory place = find_directory(file);
  const std::string directory = file.read_string(place.offset, place.size);
  std::vector<std::vector<uint64_t>> all;
  uint64_t at = 0;
  for (const Entry& entry : archive.entries()) {
    std::vector<uint64_t>& places = all.emplace_back();
    places.push_back(place.offset + at + kCrcInEntry);
    at += entry_length(directory, at);
    const std::string local = file.read_string(entry.header_offset, kLocalSize);
    if (load<uint32_t>(local, kCrcInLocal) == entry.crc32)
      places.push_back(entry.header_offset + kCrcInLocal);
    if (!(entry.flags & kFlagDescriptor)) continue;
    const uint64_t end = entry.data_offset + entry.packed_size;
    const bool named = load<uint32_t>(file.read_string(end, 4), 0) ==
                       kDescriptorSignature;  // some leave it out
    places.push_back(named ? end + 4 : end);
  }
  return all;
}

std::optional<Outline> Outline::of(const io::Handle& file,
                                   const Archive& archive,
                                   std::span<const std::string> contents) {
  Outline outline;
  outline.size_ = file.size();
  outline.directory_begin_ = find_directory(file).offset;
  outline.directory_ = file.read_string(outline.directory_begin_,
                                        file.size() - outline.directory_begin_);
  uint64_t at = 0;
  for (size_t i = 0; i < archive.entries().size(); ++i) {
    const Entry& entry = archive.entries()[i];
    if (!entry.computed || entry.method != kStored) return std::nullopt;
    if (std::ranges::find(contents, entry.name) != contents.end())
      outline.contents_.push_back(
          {entry.header_offset, entry.data_offset + entry.size, i});
    outline.crc_at_.push_back(at + kCrcInEntry);
    at += entry_length(outline.directory_, at);
  }
  std::ranges::sort(outline.contents_, {}, &Range::begin);
  take_crcs(outline.directory_, outline.crc_at_);
  return outline;
}

std::string Outline::read_contents(const io::Handle& file) const {
  std::string joined;
  for (size_t i = 0; i < contents_.size();) {
    size_t next = i + 1;
    while (next < contents_.size() &&
           contents_[next].begin - contents_[next - 1].end <= kNear)
      ++next;
    const uint64_t begin = contents_[i].begin;
    const std::string bytes =
        file.read_string(begin, contents_[next - 1].end - begin);
    for (; i < next; ++i)
      joined.append(bytes, contents_[i].begin - begin,
                    contents_[i].end - contents_[i].begin);
  }
  return joined;
}

std::optional<Outline::Own> Outline::match(const io::Handle& file) const {
  if (file.size() != size_) return std::nullopt;
  std::string directory = file.read_string(directory_begin_, directory_.size());
  Own own;
  own.crcs = take_crcs(directory, crc_at_);
  if (directory != directory_) return std::nullopt;
  own.contents = read_contents(file);
  for (const Range& range : contents_)
    append(own.contents, own.crcs[range.entry]);
  return own;
}

}  // namespace ckpt::zip
