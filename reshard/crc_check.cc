#include "reshard/crc_check.h"

#include <algorithm>
#include <atomic>
#include <mutex>
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

std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options) {
  HandleCache handles;
  std::mutex mutex;
  std::vector<Problem> problems;
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const auto threads = static_cast<uint32_t>(std::clamp<size_t>(
      catalog.crcs.size(), 1, options.threads ? options.threads : cores));
  run_threads(
      threads,
      [&](uint32_t) {
        SourceReader reader(catalog.files, handles);
        std::vector<std::byte> buffer(options.block);
        for (size_t i = next++; i < catalog.crcs.size(); i = next++) {
          if (stopped || interrupted()) return;
          auto problem = check_one(catalog.crcs[i], catalog, reader, buffer,
                                   options.progress);
          if (!problem) continue;
          const std::lock_guard lock(mutex);
          problems.push_back(std::move(*problem));
        }
      },
      [&] { stopped = true; });
  if (interrupted()) throw Interrupted("");
  std::ranges::sort(problems, {}, [](const Problem& p) {
    return std::tie(p.file, p.message);
  });
  return problems;
}

}  // namespace ckpt::reshard
