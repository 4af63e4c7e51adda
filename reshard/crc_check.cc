#include "reshard/crc_check.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "ckpt/error.h"
#include "lib/crc32.h"
#include "lib/interrupt.h"
#include "reshard/sources.h"
#include "reshard/work.h"

namespace ckpt::reshard {
namespace {

// The problem of one record; nothing if its checksum is right.
std::optional<Problem> check_one(const StoredCrc& stored,
                                 const Catalog& catalog, SourceReader& reader,
                                 std::span<std::byte> buffer,
                                 const Progress& progress) {
  Problem problem{Problem::Severity::kDamage, "crc32",
                  catalog.files[stored.file].path, "", ""};
  uint32_t crc = 0;
  try {
    for (uint64_t at = stored.begin; at < stored.end && !interrupted();) {
      const auto part =
          buffer.first(std::min<uint64_t>(buffer.size(), stored.end - at));
      reader.read(stored.file, at, part);
      crc = crc32(crc, part);
      at += part.size();
      progress.advance(part.size());
    }
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    problem.kind = "unreadable";
    problem.message =
        fmt::format("record {}: {}", stored.record, error.problem());
    return problem;
  }
  if (crc == stored.crc32) return std::nullopt;
  problem.message =
      fmt::format("record {} (bytes {}-{}) has CRC-32 {:08x}, stored is {:08x}",
                  stored.record, stored.begin, stored.end, crc, stored.crc32);
  return problem;
}

}  // namespace

uint64_t crc_bytes(const Catalog& catalog) {
  uint64_t bytes = 0;
  for (const StoredCrc& stored : catalog.crcs)
    bytes += stored.end - stored.begin;
  return bytes;
}

std::vector<std::string> tensors_in(const Catalog& catalog,
                                    const std::vector<StoredCrc>& ranges) {
  struct Start {
    uint32_t file;
    uint64_t offset;
    size_t tensor;
    auto operator<=>(const Start&) const = default;
  };
  std::vector<Start> starts;
  for (size_t t = 0; t < catalog.tensors.size(); ++t)
    for (const Piece& piece : catalog.tensors[t].pieces)
      starts.push_back({piece.extent.file, piece.extent.offset, t});
  std::ranges::sort(starts);
  std::vector<std::string> names;
  for (const StoredCrc& range : ranges) {
    const auto at =
        std::ranges::lower_bound(starts, Start{range.file, range.begin, 0});
    const bool inside =
        at != starts.end() && at->file == range.file && at->offset < range.end;
    names.push_back(inside ? catalog.tensors[at->tensor].name : "");
  }
  return names;
}

std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options) {
  std::vector<uint32_t> all(catalog.crcs.size());
  std::iota(all.begin(), all.end(), 0U);
  return named_problems(catalog, check_crcs(catalog, all, options));
}

std::vector<Problem> named_problems(
    const Catalog& catalog, std::vector<std::pair<uint32_t, Problem>> found) {
  std::vector<Problem> problems;
  std::vector<StoredCrc> wrong;  // one for each problem
  for (auto& [index, problem] : found) {
    problems.push_back(std::move(problem));
    wrong.push_back(catalog.crcs[index]);
  }
  if (problems.empty()) return problems;
  const std::vector<std::string> names = tensors_in(catalog, wrong);
  for (size_t i = 0; i < names.size(); ++i) problems[i].tensor = names[i];
  std::ranges::sort(problems, {}, [](const Problem& p) {
    return std::tie(p.file, p.message);
  });
  return problems;
}

std::vector<std::pair<uint32_t, Problem>> check_crcs(
    const Catalog& catalog, const std::vector<uint32_t>& which,
    const RunOptions& options) {
  HandleCache handles;
  std::mutex mutex;
  std::vector<std::pair<uint32_t, Problem>> problems;
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const auto threads = static_cast<uint32_t>(std::clamp<size_t>(
      which.size(), 1, options.threads ? options.threads : cores));
  run_threads(
      threads,
      [&](uint32_t) {
        SourceReader reader(catalog.files, handles);
        std::vector<std::byte> buffer(options.block);
        for (size_t i = next++; i < which.size(); i = next++) {
          if (stopped || interrupted()) return;
          auto problem = check_one(catalog.crcs[which[i]], catalog, reader,
                                   buffer, options.progress);
          if (!problem) continue;
          const std::lock_guard lock(mutex);
          problems.emplace_back(which[i], std::move(*problem));
        }
      },
      [&] { stopped = true; });
  if (interrupted()) throw Interrupted("");
  return problems;
}

}  // namespace ckpt::reshard
