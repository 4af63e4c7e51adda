// SPDX-License-Identifier: Apache-2.0
#include "formats/loose_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/decoding.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/scan.h"

namespace ckpt::formats {
namespace {

// Tokenizers take some ten MiB; anything longer is data, not a document.
constexpr uint64_t kMostJson = uint64_t{64} << 20;

bool ends_with_any(std::string_view path,
                   std::span<const std::string_view> ends) {
  return std::ranges::any_of(
      ends, [&](std::string_view end) { return path.ends_with(end); });
}

// Files that are never empty, whoever wrote them. A rank that had nothing to
// save leaves an empty .distcp, and locks of zarr are empty.
bool must_hold(const SourceFile& file) {
  constexpr auto kEnds = std::to_array<std::string_view>(
      {".pt", ".pth", ".bin", ".pkl", ".ckpt", ".json", ".safetensors",
       "run_config.yaml"});
  return ends_with_any(file.path, kEnds);
}

// Beside a file that a downloader makes as long as it will be before it has
// its bytes, until it has them all: aria2's, axel's, lftp's.
constexpr auto kUnfinished =
    std::to_array<std::string_view>({".aria2", ".st", ".lftp-pget-status"});

}  // namespace

void find_unfinished(Catalog& catalog) {
  const auto add = [&](const std::string& path, std::string_view end) {
    const std::string file = io::join(catalog.file_root, path);
    catalog.problems.push_back(
        damage(std::string(kUnfinishedFile), {file, {}},
               "its download is not finished, as {}{} beside it says: parts of "
               "it are empty; go on with the download",
               text::printable(io::base_name(path)), end));
  };
  const std::vector<SourceFile>& list = catalog.file_list;
  for (const SourceFile& state : list)
    for (const std::string_view end : kUnfinished) {
      if (!state.path.ends_with(end)) continue;
      const std::string path =
          state.path.substr(0, state.path.size() - end.size());
      if (std::ranges::find(list, path, &SourceFile::path) != list.end())
        add(path, end);
    }
  // Of a file that was opened by its name, the files beside it aren't listed. A
  // server would have to be asked for each, and nobody downloads to there.
  if (io::is_url(catalog.path) || io::is_directory(catalog.path)) return;
  for (const SourceFile& file : list)
    for (const std::string_view end : kUnfinished)
      if (io::is_listed_file(
              fmt::format("{}{}", io::join(catalog.file_root, file.path), end)))
        add(file.path, end);
}

std::vector<Problem> check_loose_files(const Catalog& catalog) {
  constexpr auto kSeverity = Problem::Severity::kDamage;
  std::vector<Problem> problems;
  std::set<std::string_view> read;
  for (const File& file : catalog.files) read.insert(file.path);
  for (const SourceFile& file : catalog.file_list) {
    const std::string path = io::join(catalog.file_root, file.path);
    // What is no file is named where the checkpoint's files are looked at.
    if (read.contains(path) || !must_hold(file) || !io::is_listed_file(path))
      continue;
    if (file.bytes == 0) {
      problems.push_back({kSeverity,
                          "empty_file",
                          path,
                          {},
                          "is empty; its writer leaves no such file empty"});
    } else if (file.path.ends_with(".json") && file.bytes <= kMostJson) {
      try {
        text::parse_python_json(io::read_file(path, kMostJson), path);
      } catch (const Error& error) {
        if (error.code() != ExitCode::kDamaged) throw;
        problems.push_back(
            {kSeverity, "unreadable_json", path, {}, error.problem()});
      }
    }
  }
  return problems;
}

void tell_unreadable_copies(Target& target) {
  for (const TargetFile& file : target.files) {
    const std::string& path = file.copy_of;
    if (!path.ends_with(".json") || io::is_url(path) || file.size > kMostJson)
      continue;
    try {
      const std::string text = io::read_file(path, kMostJson);
      text::Scanner scan(text, path, {.python_numbers = true});
      scan.skip();
      scan.finish();
    } catch (const Error& error) {
      // What can't be read ends the copy.
      if (error.code() != ExitCode::kDamaged) continue;
      target.problems.push_back(warning("unreadable_json", {path, {}},
                                        "{}; it is copied as it is",
                                        error.problem()));
    }
  }
}

}  // namespace ckpt::formats
