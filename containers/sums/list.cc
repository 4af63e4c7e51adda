// SPDX-License-Identifier: Apache-2.0
// Lists of checksums, as coreutils and BSD write them:
//
//   6f1e…  consolidated.00.pth       6f1e… *consolidated.00.pth
//   \6f1e…  a\nb.pth                 SHA256 (consolidated.00.pth) = 6f1e…
//   6f1e…                            alone, in FILE.sha256
#include "containers/sums/list.h"

#include <algorithm>
#include <filesystem>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::sums {
namespace {

constexpr uint64_t kMostList = uint64_t{64} << 20;

// "a\nb" for the escaped name of a line that begins with a backslash.
std::string unescaped(std::string_view name) {
  std::string text;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool pair = name[i] == '\\' && i + 1 < name.size();
    if (!pair) {
      text += name[i];
      continue;
    }
    const char next = name[++i];
    text += next == 'n' ? '\n' : next == 'r' ? '\r' : next;
  }
  return text;
}

std::optional<Line> line_of(std::string_view text) {
  const bool escaped = text.starts_with('\\');
  if (escaped) text.remove_prefix(1);
  std::string_view hex, name;
  if (const size_t at = text.rfind(") = "); at != text.npos && !escaped) {
    const size_t open = text.find(" (");
    if (open == text.npos || open > at) return std::nullopt;
    name = text.substr(open + 2, at - open - 2);
    hex = text.substr(at + 4);
  } else {
    const size_t end = std::min(text.find(' '), text.size());
    hex = text.substr(0, end);
    name = text.substr(end);
    if (!name.empty()) name.remove_prefix(1);
    if (name.starts_with(' ') || name.starts_with('*')) name.remove_prefix(1);
  }
  Line line;
  line.hex = lower_hex(hex);
  if (line.hex.empty()) return std::nullopt;
  line.name = escaped ? unescaped(name) : std::string(name);
  return line;
}

}  // namespace

std::string lower_hex(std::string_view text) {
  std::string hex;
  for (const char c : text) {
    if (c >= 'A' && c <= 'F')
      hex += static_cast<char>(c - 'A' + 'a');
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))
      hex += c;
    else
      return "";
  }
  return hex;
}

std::optional<Algorithm> by_digits(size_t digits) {
  if (digits == 32) return Algorithm::kMd5;
  if (digits == 40) return Algorithm::kSha1;
  if (digits == 64) return Algorithm::kSha256;
  return std::nullopt;
}

std::vector<Line> lines_of(const std::string& path) {
  const std::string text = io::read_file(path, kMostList);
  std::vector<Line> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view one = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (one.ends_with('\r')) one.remove_suffix(1);
    if (one.find_first_not_of(" \t") == one.npos || one.starts_with('#'))
      continue;
    auto line = line_of(one);
    if (!line)
      throw input_error({path, {}}, "'{}' is not a line of checksums",
                        text::printable(one.substr(0, 80)));
    lines.push_back(*std::move(line));
  }
  if (lines.empty()) throw input_error({path, {}}, "lists no checksum");
  return lines;
}

std::string inside(const std::string& root, const std::string& name) {
  namespace fs = std::filesystem;
  const fs::path relative = fs::path(name).lexically_normal();
  if (name.empty() || name.find('\0') != name.npos || relative.is_absolute() ||
      *relative.begin() == "..")
    return "";
  return io::join(root, relative.string());
}

std::vector<Sum> read_list(const std::string& path, const std::string& root) {
  std::vector<Sum> sums;
  for (const Line& line : lines_of(path)) {
    const auto algorithm = by_digits(line.hex.size());
    if (!algorithm)
      throw input_error({path, {}},
                        "a checksum of {} digits; known are MD5, SHA-1 and "
                        "SHA-256",
                        line.hex.size());
    const std::string file = inside(root, line.name);
    if (file.empty())
      throw input_error({path, {}}, "lists '{}', which is not in {}",
                        text::printable(line.name), text::printable(root));
    sums.push_back({.file = file,
                    .algorithm = *algorithm,
                    .hex = line.hex,
                    .source = io::base_name(path)});
  }
  return sums;
}

}  // namespace ckpt::sums
