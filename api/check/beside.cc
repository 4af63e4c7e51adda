// SPDX-License-Identifier: Apache-2.0
#include "api/check/beside.h"

#include <map>
#include <optional>
#include <set>
#include <string>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/zip/archive.h"

namespace ckpt::library {
namespace {

bool is_state(const SourceFile& file) {
  return file.part == "rng" || file.part == "scheduler" ||
         file.part == "trainer" || file.part == "dataloader";
}

// By name below the archive's directory: length and checksum.
using Records = std::map<std::string, std::pair<uint64_t, uint32_t>>;

// Nothing for what is no archive, or has records without a checksum.
std::optional<Records> records_of(const io::Handle& file) {
  if (file.size() < 22 || file.read_string(0, 4) != "PK\3\4")
    return std::nullopt;
  Records records;
  try {
    const zip::Archive archive = zip::Archive::read(file);
    for (const zip::Entry& entry : archive.entries()) {
      if (entry.crc32 == 0 && entry.size != 0) return std::nullopt;
      zip::check_entry(file, entry);
      const std::string name = entry.name.substr(entry.name.find('/') + 1);
      // What torch says about its own file.
      if (name != "version" && !name.starts_with('.'))
        records[name] = {entry.size, entry.crc32};
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return std::nullopt;
  }
  return records;
}

bool same_files(const std::string& a, const std::string& b) {
  const io::Handle left = io::Handle::open_read(a);
  const io::Handle right = io::Handle::open_read(b);
  if (left.size() == right.size() &&
      sha256_of(left, {}) == sha256_of(right, {}))
    return true;
  const auto x = records_of(left), y = records_of(right);
  return x && y && *x == *y;
}

}  // namespace

void compare_files(const Catalog& a, const Catalog& b,
                   std::vector<Difference>& differences) {
  std::set<std::string> in_b;
  for (const SourceFile& file : b.file_list)
    if (is_state(file)) in_b.insert(file.path);
  for (const SourceFile& file : a.file_list) {
    if (!is_state(file) || !in_b.contains(file.path)) continue;
    const std::string x = io::join(a.file_root, file.path);
    const std::string y = io::join(b.file_root, file.path);
    if (!io::is_file(x) || !io::is_file(y) || same_files(x, y)) continue;
    differences.push_back({.kind = "file",
                           .tensor = file.path,
                           .message = "the two files differ",
                           .file = y});
  }
}

}  // namespace ckpt::library
