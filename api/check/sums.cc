// SPDX-License-Identifier: Apache-2.0
#include "api/check/sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/decoding.h"
#include "lib/io/remote.h"
#include "lib/manifest.h"
#include "lib/parallel.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

// What is read once, however many sums there are of it.
using Hashed = std::tuple<std::string, sums::Algorithm, uint64_t>;

struct FileHash {
  Hashed place;
  std::string hex;
  uint64_t bytes = 0;
  std::optional<Problem> problem;
};

void hash_file(FileHash& one) {
  const auto& [path, algorithm, begin] = one.place;
  try {
    const io::Handle file = io::Handle::open_read(path);
    one.bytes = file.size() - std::min(file.size(), begin);
    one.hex = sums::hash_of(file, algorithm, begin);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kMissing &&
        error.code() != ExitCode::kDamaged)
      throw;
    one.problem =
        damage(error.code() == ExitCode::kMissing ? "missing_file" : "damaged",
               {path, {}}, "{}", error.problem());
  }
}

std::string normal(const std::string& path) {
  if (io::is_url(path)) return path;
  return std::filesystem::path(path).lexically_normal().string();
}

// A blob and the links to it are one file.
std::string real(const std::string& path) {
  std::error_code failure;
  const auto found = std::filesystem::canonical(path, failure);
  return failure ? path : found.string();
}

// "SHA-256, its name in the hub cache".
std::string promise_of(const sums::Sum& sum) {
  return fmt::format("{}, {}", sums::name(sum.algorithm), sum.source);
}

}  // namespace

std::vector<std::string> files_at(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr size_t kMost = 200'000;
  std::vector<std::string> files;
  std::error_code failure;
  if (io::is_url(path)) return files;
  if (fs::is_regular_file(path, failure)) return {path};
  for (auto at = fs::recursive_directory_iterator(
           path, fs::directory_options::skip_permission_denied, failure);
       !failure && at != fs::recursive_directory_iterator() &&
       files.size() < kMost;
       at.increment(failure)) {
    std::error_code none;
    const bool hidden = at->path().filename().string().starts_with('.');
    if (hidden && at->is_directory(none)) at.disable_recursion_pending();
    if (fs::is_regular_file(at->path(), none))
      files.push_back(at->path().string());
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::string> files_of(const Catalog& catalog, bool tensors) {
  std::set<std::string> files;
  for (const File& file : catalog.files)
    if (!file.path.empty()) files.insert(normal(file.path));
  if (!tensors)
    for (const SourceFile& file : catalog.file_list)
      files.insert(normal(io::join(catalog.file_root, file.path)));
  std::vector<std::string> all;
  for (const std::string& file : files) {
    if (io::is_url(file)) continue;
    try {
      if (io::is_file(file)) all.push_back(file);
    } catch (const Error&) {
      continue;  // dead links and pipes are named where they are read
    }
  }
  return all;
}

std::set<std::string> check_sums(const std::vector<sums::Sum>& sums,
                                 const Engine& engine, Report& report) {
  std::map<Hashed, size_t> known;
  std::vector<FileHash> reads;
  for (const sums::Sum& sum : sums) {
    Hashed place(real(sum.file), sum.algorithm, sum.begin);
    if (known.try_emplace(place, reads.size()).second)
      reads.push_back({.place = std::move(place), .hex = {}, .problem = {}});
  }
  uint64_t total = 0;
  for (const FileHash& one : reads)
    total += io::file_size(std::get<0>(one.place)).value_or(0);
  const Progress progress = engine.make_progress();
  progress.begin("checking", total);
  parallel_for(reads.size(), [&](size_t i) {
    hash_file(reads[i]);
    progress.advance(reads[i].bytes);
  });
  progress.end();
  std::set<std::string> proven;
  std::set<const FileHash*> told;
  std::map<std::string, std::set<std::string>> compared;  // files by source
  for (const FileHash& one : reads) report.bytes += one.bytes;
  for (const sums::Sum& sum : sums) {
    const FileHash& one =
        reads[known.at(Hashed(real(sum.file), sum.algorithm, sum.begin))];
    if (one.problem) {
      if (told.insert(&one).second) report.problems.push_back(*one.problem);
      continue;
    }
    if (one.hex == sum.hex) {
      proven.insert(sum.file);
      compared[promise_of(sum)].insert(sum.file);
    } else if (sum.loose) {
      report.problems.push_back(warning(
          "other_checksum", {sum.file, {}},
          "its tensors' {} is {}, {} says {}: not all writers mean this",
          sums::name(sum.algorithm), one.hex, sum.source, sum.hex));
    } else {
      report.problems.push_back(
          damage("checksum", {sum.file, {}}, "has {} {}, and by {} it is {}",
                 sums::name(sum.algorithm), one.hex, sum.source, sum.hex));
    }
  }
  for (const auto& [source, files] : compared)
    report.problems.push_back(
        remark("checksums", {{}, {}}, "{} compared with {}: equal",
               text::counted(files.size(), "file"), source));
  return proven;
}

std::vector<Problem> wrong_sums(const Catalog& source, const Engine& engine,
                                bool all) {
  if (source.path.empty()) return {};  // a salvage, which compares them itself
  const bool single = io::is_file(source.path);
  std::vector<sums::Sum> found =
      sums::beside(files_of(source, true),
                   single ? io::parent(source.path) : source.path)
          .sums;
  if (!all)
    std::erase_if(
        found, [](const sums::Sum& sum) { return !sums::is_list(sum.source); });
  if (found.empty()) return {};
  Report report;
  check_sums(found, engine, report);
  std::erase_if(report.problems, [](const Problem& problem) {
    return problem.severity != Problem::Severity::kDamage;
  });
  return std::move(report.problems);
}

uint64_t without_checksum(const Catalog& catalog,
                          const std::set<std::string>& proven) {
  using Place = std::pair<uint32_t, uint64_t>;
  std::vector<std::pair<Place, uint64_t>> summed;  // begins and ends
  summed.reserve(catalog.crcs.size());
  for (const StoredCrc& crc : catalog.crcs)
    summed.push_back({{crc.file, crc.begin}, crc.end});
  std::ranges::sort(summed);
  const auto is_summed = [&](const Extent& extent) {
    const Place place(extent.file, extent.offset);
    const auto after = std::ranges::upper_bound(
        summed, place, {}, [](const auto& record) { return record.first; });
    return after != summed.begin() &&
           std::prev(after)->first.first == extent.file &&
           extent.offset <= std::prev(after)->second;
  };
  const std::function<bool(const Piece&)> is_bare = [&](const Piece& piece) {
    if (const File& file = catalog.files[piece.extent.file]; is_decoded(file))
      // What it is made of is in the catalog's first files.
      return std::ranges::any_of(
          parts_of(decoding_of(file)), [&](const Tensor* part) {
            return std::ranges::any_of(part->pieces, is_bare);
          });
    const Codec codec = catalog.files[piece.extent.file].codec;
    if (proven.contains(catalog.files[piece.extent.file].path)) return false;
    return codec != Codec::kMemory && codec != Codec::kFill &&
           !is_summed(piece.extent);
  };
  return static_cast<uint64_t>(
      std::ranges::count_if(catalog.tensors, [&](const Tensor& tensor) {
        return byte_size(tensor) != 0 &&
               std::ranges::any_of(tensor.pieces, is_bare);
      }));
}

Against read_against(const std::string& path, const std::string& root) {
  if (!io::is_file(path))
    throw missing_error({path, {}}, "--against: no such file");
  const io::Handle file = io::Handle::open_read(path);
  constexpr uint64_t kHead = 64;
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), kHead));
  Against against;
  against.manifest = head.find("\"ckpt_manifest\"") != head.npos;
  if (!against.manifest) against.sums = sums::read_list(path, root);
  return against;
}

}  // namespace ckpt::library
