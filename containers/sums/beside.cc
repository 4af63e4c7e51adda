// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/safetensors/header.h"
#include "containers/sums/list.h"
#include "containers/sums/sums.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::sums {
namespace {

namespace fs = std::filesystem;

struct Asked {
  const std::vector<std::string>& files;
  const std::string& root;
  // By their paths without "." and "..".
  std::map<std::string, std::string> by_path;
};

std::string normal(const std::string& path) {
  return fs::path(path).lexically_normal().string();
}

// The checksum of a git host's ETag: git's own of a small file, SHA-256 of what
// lies in its large file storage.
std::optional<Algorithm> of_etag(const std::string& hex) {
  if (hex.size() == 64) return Algorithm::kSha256;
  if (hex.size() == 40) return Algorithm::kGit;
  return std::nullopt;
}

// --- stores that name files by their content ---

void add_stored(const Asked& asked, Beside& found) {
  for (const std::string& file : asked.files) {
    Sum sum = stored_under_sum(file);
    if (!sum.hex.empty()) found.sums.push_back(std::move(sum));
  }
}

// --- downloads into a plain directory ---

constexpr std::string_view kDownloads = ".cache/huggingface/download";
constexpr uint64_t kMostMetadata = 64 << 10;
constexpr size_t kMostParents = 8;

// The directory above `root`, or itself, that a download went to.
std::optional<std::string> download_root(const std::string& root) {
  fs::path at = fs::absolute(root).lexically_normal();
  for (size_t i = 0; i < kMostParents; ++i) {
    std::error_code failure;
    if (fs::is_directory(at / kDownloads, failure)) return at.string();
    if (at == at.parent_path()) break;
    at = at.parent_path();
  }
  return std::nullopt;
}

// Three lines: the commit, the ETag, and when it was stored.
std::string etag_in(const std::string& path) {
  const std::string text = io::read_file(path, kMostMetadata);
  const size_t begin = text.find('\n');
  if (begin == text.npos) return "";
  const size_t end = std::min(text.find('\n', begin + 1), text.size());
  std::string etag = text.substr(begin + 1, end - begin - 1);
  std::erase_if(etag, [](char c) { return c == '"' || c == '\r'; });
  if (etag.starts_with("W/")) etag.erase(0, 2);
  return lower_hex(etag);
}

void add_downloaded(const Asked& asked, Beside& found) {
  const auto root = download_root(asked.root);
  if (!root) return;
  for (const std::string& file : asked.files) {
    const std::string name =
        fs::absolute(file).lexically_normal().lexically_relative(*root);
    if (inside(*root, name).empty()) continue;
    const std::string metadata =
        io::join(io::join(*root, kDownloads), name + ".metadata");
    if (!io::is_file(metadata)) continue;
    std::string hex = etag_in(metadata);
    if (const auto algorithm = of_etag(hex))
      found.sums.push_back({.file = file,
                            .algorithm = *algorithm,
                            .hex = std::move(hex),
                            .source = "the ETag of its download"});
  }
}

// --- lists ---

// In lower case: "sha256", and what stands around it in the names of lists.
// Those of digests that no one here can compute are lists all the same: they
// are not of what is made of the files.
constexpr auto kDigests = std::to_array<std::string_view>(
    {"sha256", "sha1", "md5", "sha224", "sha384", "sha512", "b2", "blake2",
     "b3", "blake3"});
constexpr auto kAround = std::to_array<std::string_view>(
    {"sums", "sums.txt", "sum", "sum.txt", ".txt"});
constexpr auto kLists = std::to_array<std::string_view>(
    {"checksums", "checksums.txt", "checksum.txt", "checklist.chk", "shasums",
     "shasums.txt", "shasums256.txt"});

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

// Of FILE.sha256, FILE.sha256sum and FILE.sha256sums: FILE. Nothing if the name
// is no list's.
std::optional<std::string> listed_by(const std::string& name) {
  const std::string low = lower(name);
  if (std::ranges::find(kLists, low) != kLists.end()) return "";
  for (const std::string_view digest : kDigests) {
    for (const std::string_view around : kAround)
      if (low == fmt::format("{}{}", digest, around)) return "";
    for (const std::string_view around : {"", "sum", "sums"}) {
      const std::string ending = fmt::format(".{}{}", digest, around);
      if (low.ends_with(ending) && low.size() > ending.size())
        return name.substr(0, name.size() - ending.size());
    }
  }
  return std::nullopt;
}

// The file that FILE.sha256 is of, or that it names.
void add_line(const Asked& asked, const std::string& list,
              const std::string& own, const Line& line, Beside& found) {
  const std::string name = line.name.empty() ? own : line.name;
  const std::string file = normal(inside(io::parent(list), name));
  const auto algorithm = by_digits(line.hex.size());
  const auto which = asked.by_path.find(file);
  if (which == asked.by_path.end()) return;
  if (algorithm)
    found.sums.push_back({.file = which->second,
                          .algorithm = *algorithm,
                          .hex = line.hex,
                          .source = io::base_name(list)});
  else
    found.problems.push_back(
        warning("unread_checksum", {list, {}},
                "{}: a checksum of {} digits; known are MD5, SHA-1 and SHA-256",
                text::printable(name), line.hex.size()));
}

void add_list(const Asked& asked, const std::string& list,
              const std::string& own, Beside& found) {
  try {
    for (const Line& line : lines_of(list))
      add_line(asked, list, own, line, found);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    found.problems.push_back(warning("unread_checksum", {list, {}},
                                     "is not read: {}", error.problem()));
  }
}

void add_listed(const Asked& asked, Beside& found) {
  std::set<std::string> folders{asked.root};
  for (const std::string& file : asked.files) folders.insert(io::parent(file));
  for (const std::string& folder : folders) {
    if (!io::is_directory(folder)) continue;
    for (const std::string& name : io::list_directory(folder)) {
      const auto own = listed_by(name);
      const std::string path = io::join(folder, name);
      if (own && io::is_file(path)) add_list(asked, path, *own, found);
    }
  }
}

// --- headers ---

// kohya-ss/sd-scripts: SHA-256 of what follows the header.
// modelspec.hash_sha256 should be the same with 0x before it; writers have put
// other things there.
struct HeaderKey {
  std::string_view key;
  bool loose;
};
constexpr auto kHeaderKeys = std::to_array<HeaderKey>(
    {{"sshs_model_hash", false}, {"modelspec.hash_sha256", true}});

void add_of_header(const std::string& file, Beside& found) {
  const io::Handle handle = io::Handle::open_read(file);
  if (handle.size() < 8) return;
  std::array<std::byte, 8> bytes;
  handle.read(0, bytes);
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;)
    length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  if (length > safetensors::kMaxHeader || length > handle.size() - 8) return;
  const std::string text = handle.read_string(8, length);
  if (std::ranges::none_of(kHeaderKeys, [&](const HeaderKey& one) {
        return text.find(one.key) != text.npos;
      }))
    return;
  safetensors::Header header;
  try {
    header = safetensors::parse_header(text, handle.size(), file);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return;  // whoever opens the file says so
  }
  if (!header.metadata) return;
  for (const auto& [key, value] : *header.metadata) {
    const auto row = std::ranges::find(kHeaderKeys, key, &HeaderKey::key);
    if (row == kHeaderKeys.end()) continue;
    const bool prefix = value.starts_with("0x");
    std::string hex = lower_hex(std::string_view(value).substr(prefix ? 2 : 0));
    if (hex.size() != 64) continue;
    found.sums.push_back({.file = file,
                          .algorithm = Algorithm::kSha256,
                          .hex = std::move(hex),
                          .source = key + " of its header",
                          .begin = 8 + length,
                          .loose = row->loose});
  }
}

void add_of_headers(const Asked& asked, Beside& found) {
  for (const std::string& file : asked.files)
    if (file.ends_with(".safetensors")) add_of_header(file, found);
}

// The name of the file that it is of; "" if it is no such metadata.
std::string downloaded_by(const std::string& path) {
  constexpr std::string_view kEnding = ".metadata";
  const std::string mark = "/" + std::string(kDownloads) + "/";
  const size_t at = path.rfind(mark);
  if (at == path.npos || !path.ends_with(kEnding)) return "";
  const size_t begin = at + mark.size();
  if (begin + kEnding.size() >= path.size()) return "";
  return path.substr(0, at + 1) +
         path.substr(begin, path.size() - kEnding.size() - begin);
}

void add_metadata(const Asked& asked, const std::string& path, Beside& found) {
  const auto which = asked.by_path.find(normal(downloaded_by(path)));
  if (which == asked.by_path.end()) return;
  std::string hex = etag_in(path);
  if (const auto algorithm = of_etag(hex))
    found.sums.push_back({.file = which->second,
                          .algorithm = *algorithm,
                          .hex = std::move(hex),
                          .source = io::base_name(path)});
}

using Kind = void (*)(const Asked& asked, Beside& found);
constexpr Kind kKinds[] = {add_stored, add_downloaded, add_listed,
                           add_of_headers};

}  // namespace

bool is_list(const std::string& name) { return listed_by(name).has_value(); }

Sum stored_under_sum(const std::string& path) {
  std::error_code failure;
  const fs::path real = fs::canonical(path, failure);
  if (failure) return {};
  const std::string hex = real.filename().string();
  const auto algorithm = of_etag(hex);
  if (!algorithm || lower_hex(hex) != hex) return {};
  const fs::path folder = real.parent_path();
  const bool lfs = hex.size() == 64 && folder.filename() == hex.substr(2, 2) &&
                   folder.parent_path().filename() == hex.substr(0, 2);
  if (!lfs && folder.filename() != "blobs") return {};
  return {.file = path,
          .algorithm = *algorithm,
          .hex = hex,
          .source = lfs ? "its name in git-lfs's store"
                        : "its name in the hub cache"};
}

Beside listed(const std::vector<std::string>& files) {
  Beside found;
  const std::string root;
  Asked asked{.files = files, .root = root, .by_path = {}};
  for (const std::string& file : files) asked.by_path[normal(file)] = file;
  for (const std::string& file : files) {
    if (!downloaded_by(file).empty()) add_metadata(asked, file, found);
    if (const auto own = listed_by(io::base_name(file)))
      add_list(asked, file, *own, found);
  }
  return found;
}

Beside beside(const std::vector<std::string>& files, const std::string& root) {
  Beside found;
  if (io::is_url(root)) return found;
  Asked asked{.files = files, .root = root, .by_path = {}};
  for (const std::string& file : files) asked.by_path[normal(file)] = file;
  for (const Kind kind : kKinds) kind(asked, found);
  return found;
}

}  // namespace ckpt::sums
