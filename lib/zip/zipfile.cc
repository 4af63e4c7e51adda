// SPDX-License-Identifier: Apache-2.0
// Archives to the byte as Python's zipfile writes them for numpy.savez.
#include <algorithm>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/text/utf8.h"
#include "lib/zip/archive.h"
#include "lib/zip/headers.h"

namespace ckpt::zip {
namespace {

// zipfile takes 64 bits for what a signed number would not hold.
constexpr uint64_t kMostPlain = 0x7FFFFFFF;
constexpr uint64_t kMostArchive = uint64_t{1} << 62;
constexpr uint16_t kVersion = 45;
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // of 1980
constexpr uint16_t kUnix = 3 << 8;
constexpr uint32_t kMode = 0600U << 16;

uint16_t short_size(const std::string& text) {
  return static_cast<uint16_t>(text.size());
}

class Layouter {
 public:
  void add(const Member& member) {
    const uint64_t size = member.head.size() + member.payload;
    if (size < member.payload || size > kMostArchive ||
        at_ > kMostArchive - size)
      throw unfaithful_error({{}, member.name},
                             "record of {} bytes at byte {} goes beyond 2^62",
                             member.payload, at_);
    const uint64_t begin = at_;
    std::string header;
    append(header, kLocalSignature);
    append_fields(header, member);
    const uint64_t crc_at = begin + header.size();
    append<uint32_t>(header, 0);
    append(header, static_cast<uint32_t>(kMax32));
    append(header, static_cast<uint32_t>(kMax32));
    append(header, short_size(member.name));
    append<uint16_t>(header, 20);
    header += member.name;
    append<uint16_t>(header, kZip64Extra);
    append<uint16_t>(header, 16);
    append(header, size);
    append(header, size);
    literal(std::move(header));

    const uint64_t data = at_;
    literal(member.head);
    plan_.data_offsets.push_back(at_);
    at_ += member.payload;
    plan_.crcs.push_back({data, at_, {crc_at}});
    add_entry(member, size, begin);
  }

  PlannedArchive finish() {
    const uint64_t begin = at_;
    for (size_t i = 0; i < crc_in_directory_.size(); ++i)
      plan_.crcs[i].at.push_back(begin + crc_in_directory_[i]);
    const uint64_t size = directory_.size();
    const uint64_t count = plan_.crcs.size();
    if (count > kMax16 || begin > kMostPlain || size > kMostPlain)
      add_end64(begin, size, count);
    append(directory_, kEndSignature);
    append<uint32_t>(directory_, 0);  // two disks
    for (int i = 0; i < 2; ++i)
      append(directory_, static_cast<uint16_t>(std::min(count, kMax16)));
    append(directory_, static_cast<uint32_t>(std::min(size, kMax32)));
    append(directory_, static_cast<uint32_t>(std::min(begin, kMax32)));
    append<uint16_t>(directory_, 0);  // comment
    literal(std::move(directory_));
    plan_.size = at_;
    return std::move(plan_);
  }

 private:
  void literal(std::string bytes) {
    if (bytes.empty()) return;
    const uint64_t begin = at_;
    at_ += bytes.size();
    plan_.literals.push_back({begin, std::move(bytes)});
  }

  // From the version that is needed to the date.
  static void append_fields(std::string& header, const Member& member) {
    const bool ascii = std::ranges::all_of(
        member.name, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
    append(header, kVersion);
    append<uint16_t>(header, ascii ? 0 : kFlagUtf8);
    append(header, kStored);
    append<uint16_t>(header, 0);  // time
    append(header, kFirstDay);
  }

  void add_entry(const Member& member, uint64_t size, uint64_t header_offset) {
    std::string values;
    const bool wide = size > kMostPlain, far = header_offset > kMostPlain;
    if (wide) append(values, size);
    if (wide) append(values, size);
    if (far) append(values, header_offset);
    std::string extra;
    if (!values.empty()) {
      append<uint16_t>(extra, kZip64Extra);
      append(extra, short_size(values));
      extra += values;
    }
    const auto plain = static_cast<uint32_t>(wide ? kMax32 : size);
    append(directory_, kDirectorySignature);
    append<uint16_t>(directory_, kUnix | kVersion);
    append_fields(directory_, member);
    crc_in_directory_.push_back(directory_.size());
    append<uint32_t>(directory_, 0);
    append(directory_, plain);
    append(directory_, plain);
    append(directory_, short_size(member.name));
    append(directory_, short_size(extra));
    append<uint16_t>(directory_, 0);  // comment
    append<uint16_t>(directory_, 0);  // disk
    append<uint16_t>(directory_, 0);  // internal attributes
    append(directory_, kMode);
    append(directory_, static_cast<uint32_t>(far ? kMax32 : header_offset));
    directory_ += member.name;
    directory_ += extra;
  }

  void add_end64(uint64_t begin, uint64_t size, uint64_t count) {
    const uint64_t end64 = begin + size;
    append(directory_, kEnd64Signature);
    append<uint64_t>(directory_, kEnd64Size - 12);
    append(directory_, kVersion);
    append(directory_, kVersion);
    append<uint64_t>(directory_, 0);  // two disks
    append(directory_, count);
    append(directory_, count);
    append(directory_, size);
    append(directory_, begin);

    append(directory_, kLocatorSignature);
    append<uint32_t>(directory_, 0);  // disk
    append(directory_, end64);
    append<uint32_t>(directory_, 1);  // disks
  }

  uint64_t at_ = 0;
  PlannedArchive plan_;
  std::string directory_;
  std::vector<uint64_t> crc_in_directory_;
};

}  // namespace

PlannedArchive plan_zipfile(const std::vector<Member>& members) {
  std::unordered_set<std::string_view> names;
  Layouter layouter;
  for (const Member& member : members) {
    if (member.name.empty() || member.name.size() > kMax16 ||
        !text::is_utf8(member.name))
      throw unfaithful_error({{}, member.name.substr(0, 100)},
                             "a zip record's name is UTF-8 of at most {} bytes",
                             kMax16);
    if (!names.insert(member.name).second)
      throw bug_error({{}, member.name}, "record planned twice");
    layouter.add(member);
  }
  return layouter.finish();
}

}  // namespace ckpt::zip
