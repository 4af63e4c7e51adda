// SPDX-License-Identifier: Apache-2.0
#include "lib/io/probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/io/direct.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/parallel.h"

namespace ckpt::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPiece = uint64_t{1} << 20;
constexpr uint64_t kMost = uint64_t{512} << 20;  // bytes of a probe
constexpr size_t kReaders = 8;

struct Free {
  void operator()(void* bytes) const { std::free(bytes); }
};
using Aligned = std::unique_ptr<std::byte, Free>;

Aligned make_aligned() {
  return Aligned(static_cast<std::byte*>(
      std::aligned_alloc(DirectFile::kMostAlign, kPiece)));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Target {
  std::shared_ptr<const DirectFile> file;
  uint64_t pieces = 0;
};

std::vector<Target> targets_of(const std::vector<std::string>& files) {
  constexpr size_t kMostFiles = 64;
  std::vector<Target> targets;
  const size_t step = files.size() / kMostFiles + 1;
  for (size_t i = 0; i < files.size(); i += step) {
    const uint64_t size = file_size(files[i]).value_or(0);
    if (size < kPiece) continue;
    if (auto file = DirectFile::open(files[i]))
      targets.push_back({std::move(file), size / kPiece});
  }
  return targets;
}

// Reads pieces of all targets in turn until time is up; `next` counts the
// pieces of all readers.
uint64_t read_some(const std::vector<Target>& targets,
                   std::atomic<uint64_t>& next, Clock::time_point begin,
                   double seconds) {
  const Aligned buffer = make_aligned();
  if (!buffer) return 0;
  uint64_t bytes = 0;
  while (seconds_since(begin) < seconds) {
    const uint64_t number = next++;
    if (number * kPiece >= kMost) break;
    const Target& target = targets[number % targets.size()];
    // Golden-ratio steps reach everywhere, and no place twice soon.
    const uint64_t at =
        number * 0x9E3779B97F4A7C15 / (UINT64_MAX / target.pieces + 1);
    bytes +=
        target.file->read(at % target.pieces * kPiece, {buffer.get(), kPiece});
  }
  return bytes;
}

}  // namespace

std::optional<double> probe_reads(const std::vector<std::string>& files,
                                  double seconds) {
  const failures::Unimportant estimate;
  try {
    const std::vector<Target> targets = targets_of(files);
    if (targets.empty()) return std::nullopt;
    std::atomic<uint64_t> next{0}, bytes{0};
    std::atomic<bool> failed{false};
    const Clock::time_point begin = Clock::now();
    const auto reader = [&] {
      const failures::Unimportant estimate_too;
      try {
        bytes += read_some(targets, next, begin, seconds);
      } catch (const std::exception&) {
        failed = true;
      }
    };
    {
      std::vector<std::jthread> threads;
      for (size_t i = 1; i < kReaders; ++i)
        if (!try_thread(threads, reader)) break;
      reader();
    }
    if (failed || bytes == 0) return std::nullopt;
    return static_cast<double>(bytes) / seconds_since(begin);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<uint64_t> free_bytes(const std::string& path) {
  struct statvfs facts = {};
  if (::statvfs(path.c_str(), &facts) != 0 || facts.f_blocks == 0)
    return std::nullopt;
  return uint64_t{facts.f_bavail} * uint64_t{facts.f_frsize};
}

std::optional<double> probe_writes(const std::string& directory,
                                   double seconds) {
  const std::optional<uint64_t> free = free_bytes(directory);
  if (!free || *free < 4 * kMost) return std::nullopt;
  const int fd =
      ::open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return std::nullopt;
  const Aligned buffer = make_aligned();
  uint64_t bytes = 0;
  const Clock::time_point begin = Clock::now();
  bool good = buffer != nullptr;
  if (good) {
    // No holes, and nothing that a file system could compress.
    uint64_t word = 1;
    for (uint64_t i = 0; i < kPiece / sizeof word; ++i) {
      word = word * 6364136223846793005 + 1442695040888963407;
      reinterpret_cast<uint64_t*>(buffer.get())[i] = word;
    }
  }
  while (good && bytes < kMost && seconds_since(begin) < seconds) {
    good = ::write(fd, buffer.get(), kPiece) == static_cast<ssize_t>(kPiece);
    bytes += kPiece;
    // What waits in the page cache takes time after the last write.
    if (bytes % (16 * kPiece) == 0) good = good && ::fdatasync(fd) == 0;
  }
  good = good && ::fdatasync(fd) == 0;
  const double took = seconds_since(begin);
  ::close(fd);
  if (!good || bytes == 0) return std::nullopt;
  return static_cast<double>(bytes) / took;
}

bool on_one_disk(const std::string& a, const std::string& b) {
  struct stat first = {}, second = {};
  return stat_any(a, first) && stat_any(b, second) &&
         first.st_dev == second.st_dev;
}

}  // namespace ckpt::io
