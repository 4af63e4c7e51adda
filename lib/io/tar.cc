// SPDX-License-Identifier: Apache-2.0
#include "lib/io/tar.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::io {
namespace {

constexpr uint64_t kTarBlock = 512;
// For a member that describes the next one.
constexpr uint64_t kMostExtra = 1 << 20;
constexpr size_t kMostMembers = 4'000'000;
constexpr size_t kMostName = 4096;

std::string_view field(std::string_view header, size_t at, size_t size) {
  const std::string_view all = header.substr(at, size);
  return all.substr(0, all.find('\0'));
}

// Octal digits between spaces, or big-endian after a set bit.
std::optional<uint64_t> tar_number(std::string_view bytes) {
  uint64_t value = 0;
  if (!bytes.empty() && (static_cast<uint8_t>(bytes[0]) & 0x80) != 0) {
    if (static_cast<uint8_t>(bytes[0]) != 0x80) return std::nullopt;
    for (const char byte : bytes.substr(1)) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<uint8_t>(byte);
    }
    return value;
  }
  bytes = bytes.substr(0, bytes.find('\0'));
  while (bytes.starts_with(' ')) bytes.remove_prefix(1);
  while (bytes.ends_with(' ')) bytes.remove_suffix(1);
  const char* const end = bytes.data() + bytes.size();
  const auto [at, error] = std::from_chars(bytes.data(), end, value, 8);
  if (bytes.empty() || error != std::errc() || at != end) return std::nullopt;
  return value;
}

// The sum of the header's bytes, with its own field taken as spaces.
bool has_checksum(std::string_view header) {
  uint64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(header[i]);
  return tar_number(header.substr(148, 8)) == sum;
}

bool is_header(std::string_view header) {
  return header.size() == kTarBlock && header.substr(257, 5) == "ustar" &&
         has_checksum(header);
}

std::string_view kind_of_type(char type) {
  switch (type) {
    case '1':
      return "a hard link";
    case '2':
      return "a symbolic link";
    case '3':
    case '4':
      return "a device";
    case '6':
      return "a FIFO";
    case 'S':
      return "a sparse file";
    default:
      return "of a type that ckpt does not know";
  }
}

class Scan {
 public:
  explicit Scan(const Handle& file) : file_(file) {}

  std::vector<TarMember> read() {
    while (read_member()) {
    }
    check_paths();
    return std::move(members_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
    throw input_error({file_.path(), {}}, "tar: {}",
                      fmt::format(text, std::forward<Args>(args)...));
  }

  bool read_member() {
    const uint64_t start = at_;
    if (file_.size() - start < kTarBlock)
      throw input_error({file_.path(), {}},
                        "tar: ends at byte {} without the blocks of zeros that "
                        "end it",
                        file_.size())
          .with_hint("copy or download the file again");
    const std::string header = file_.read_string(start, kTarBlock);
    if (std::ranges::all_of(header, [](char c) { return c == '\0'; }))
      return false;
    if (!is_header(header)) fail("no header at byte {}", start);
    const auto size = tar_number(std::string_view(header).substr(124, 12));
    if (!size) fail("the size in the header at byte {} is not a number", start);
    at_ += kTarBlock;
    take(header, header[156], pax_size_.value_or(*size), start);
    return true;
  }

  void take(std::string_view header, char type, uint64_t size, uint64_t start) {
    const bool extra = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    const std::string name = name_of(header);
    const uint64_t begin = at_;
    const uint64_t stored = type == '5' ? 0 : size;
    if (stored > file_.size() - begin)
      fail("member {} of {} bytes goes beyond the end of the file",
           text::printable(name), stored);
    const uint64_t room = file_.size() - begin;
    at_ += std::min(room, (stored + kTarBlock - 1) / kTarBlock * kTarBlock);
    if (extra) {
      if (size > kMostExtra)
        fail("a header of {} bytes at byte {}", size, start);
      return take_extra(type, file_.read_string(begin, size), start);
    }
    if (type != '0' && type != '\0' && type != '7' && type != '5')
      fail("member {} is {}; checkpoints hold files and directories",
           text::printable(name), kind_of_type(type));
    // Old writers mark a directory only by a slash.
    const bool directory = type == '5' || (type != '7' && name.ends_with('/'));
    members_.push_back({clean(name), directory, begin, stored});
    if (members_.size() > kMostMembers)
      fail("more than {} members", kMostMembers);
    long_name_.reset();
    pax_size_.reset();
  }

  std::string name_of(std::string_view header) const {
    if (long_name_) return *long_name_;
    const std::string name(field(header, 0, 100));
    const std::string_view prefix = field(header, 345, 155);
    // GNU's old format has other things there: its magic ends in a space.
    if (prefix.empty() || header[262] == ' ') return name;
    return std::string(prefix) + "/" + name;
  }

  void take_extra(char type, const std::string& content, uint64_t start) {
    if (type == 'L') long_name_ = content.substr(0, content.find('\0'));
    if (type == 'x' || type == 'g') take_pax(content, type == 'g', start);
  }

  // "27 path=model_weights/a.b.c\n" …: the length counts the whole line.
  void take_pax(std::string_view text, bool global, uint64_t start) {
    while (!text.empty()) {
      size_t length = 0;
      const auto [at, error] =
          std::from_chars(text.data(), text.data() + text.size(), length);
      const auto digits = static_cast<size_t>(at - text.data());
      if (error != std::errc() || length > text.size() || length < digits + 3 ||
          *at != ' ' || text[length - 1] != '\n')
        fail("a record of the pax header at byte {} is damaged", start);
      const auto line = text.substr(digits + 1, length - digits - 2);
      const size_t equals = line.find('=');
      if (equals == line.npos)
        fail("a record of the pax header at byte {} has no value", start);
      set_pax(line.substr(0, equals), line.substr(equals + 1), global, start);
      text.remove_prefix(length);
    }
  }

  void set_pax(std::string_view key, std::string_view value, bool global,
               uint64_t start) {
    if (key.starts_with("GNU.sparse."))
      fail("the pax header at byte {} is of a sparse file", start);
    if (key != "path" && key != "size") return;
    if (global)
      fail("the pax header at byte {} names all members alike", start);
    if (key == "path") {
      long_name_ = std::string(value);
      return;
    }
    uint64_t size = 0;
    const char* const end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, size);
    if (error != std::errc() || at != end || value.empty())
      fail("the pax header at byte {} has a size that is not a number", start);
    pax_size_ = size;
  }

  // Without "." and redundant slashes.
  std::string clean(const std::string& name) {
    std::string out;
    if (name.size() > kMostName || name.empty() || name.starts_with('/') ||
        name.find('\0') != name.npos)
      fail("a member has the name '{}'", text::printable(name).substr(0, 100));
    for (std::string_view rest = name; !rest.empty();) {
      const size_t slash = std::min(rest.find('/'), rest.size());
      const std::string_view part = rest.substr(0, slash);
      rest.remove_prefix(std::min(slash + 1, rest.size()));
      if (part == "..")
        fail("member {} leaves the archive", text::printable(name));
      if (part.empty() || part == ".") continue;
      if (!out.empty()) out += '/';
      out += part;
    }
    return out;
  }

  // A name that occurs twice is ambiguous; a file can't be inside a file.
  void check_paths() {
    std::vector<const TarMember*> order;
    for (const TarMember& member : members_) order.push_back(&member);
    std::ranges::sort(order, {}, [](const TarMember* m) -> const std::string& {
      return m->name;
    });
    std::set<std::string_view> files;
    for (const TarMember* member : order)
      if (!member->directory) {
        if (member->name.empty() || !files.insert(member->name).second)
          fail("two members are {}", text::printable(member->name));
      }
    for (const TarMember* member : order) {
      const std::string_view name = member->name;
      if (member->directory && files.contains(name))
        fail("{} is a file and a directory", text::printable(name));
      for (size_t at = name.find('/'); at != name.npos;
           at = name.find('/', at + 1))
        if (files.contains(name.substr(0, at)))
          fail("{} lies in {}, which is a file", text::printable(name),
               text::printable(name.substr(0, at)));
    }
  }

  const Handle& file_;
  uint64_t at_ = 0;
  std::vector<TarMember> members_;
  std::optional<std::string> long_name_;  // of the next member
  std::optional<uint64_t> pax_size_;
};

}  // namespace

bool is_tar(const Handle& file) {
  return file.size() >= kTarBlock && is_header(file.read_string(0, kTarBlock));
}

std::vector<TarMember> read_tar(const Handle& file) {
  return Scan(file).read();
}

}  // namespace ckpt::io
