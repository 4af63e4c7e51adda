// SPDX-License-Identifier: Apache-2.0
#include "lib/tree_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "lib/heap.h"
#include "lib/text/format.h"
#include "lib/tree_peak.h"

namespace ckpt::tree_memory {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLooked = 256 << 10;

std::atomic<uint64_t> taken_now{0};
std::atomic<uint64_t> most{0};
std::atomic<uint64_t> highest{0};
std::atomic<uint64_t> expected{0};
std::atomic<double> pieces_of_byte{0};

uint64_t half_of_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page = ::sysconf(_SC_PAGESIZE);
  const uint64_t all = pages > 0 && page > 0 ? static_cast<uint64_t>(pages) *
                                                   static_cast<uint64_t>(page)
                                             : 0;
  return std::max(all / 2, 1024 * kMiB);
}

// Too many values for its bytes, or too many for the limit beside `others`.
[[noreturn]] void refuse(const std::string& path, uint64_t wanted,
                         uint64_t others, uint64_t size, bool about,
                         bool dense) {
  const char* rough = about ? "about " : "";
  if (dense)
    throw resource_error({path, {}},
                         "the values of its {} would take {}{} of memory, "
                         "more than {} bytes for each byte",
                         text::iec_size(size), rough, text::iec_size(wanted),
                         kMostPerByte)
        .with_hint(
            "no program writes such files: ask for it again where it "
            "came from");
  const uint64_t all = wanted + others;
  foresee(all);
  throw resource_error({path, {}},
                       "the values of its {} would take {}{} of memory, the "
                       "limit is {}",
                       text::iec_size(size), rough, text::iec_size(wanted),
                       text::iec_size(limit()))
      .with_hint(fmt::format("--max-mem {}MiB", enough(all) / kMiB));
}

}  // namespace

void set_limit(uint64_t bytes) { most = bytes; }

uint64_t limit() {
  static const uint64_t unless_asked = half_of_memory();
  const uint64_t asked = most;
  return asked == 0 ? unless_asked : asked;
}

uint64_t used() { return taken_now; }
uint64_t peak() { return highest; }
uint64_t foreseen() { return expected; }
uint64_t enough(uint64_t bytes) { return bytes + bytes / 4 + 8 * kMiB; }
void foresee(uint64_t bytes) {
  uint64_t known = expected;
  while (known < bytes && !expected.compare_exchange_weak(known, bytes)) {
  }
}
void foresee_pieces(uint64_t pieces, uint64_t bytes) {
  const double found = static_cast<double>(pieces) /
                       static_cast<double>(std::max<uint64_t>(1, bytes));
  double known = pieces_of_byte;
  while (known < found && !pieces_of_byte.compare_exchange_weak(known, found)) {
  }
}
uint64_t foreseen_pieces() {
  return static_cast<uint64_t>(pieces_of_byte *
                               static_cast<double>(foreseen()));
}
void forget_peak() { highest = taken_now.load(); }

Full::Full(uint64_t bytes)
    : Error(resource_error({}, "{} of values in memory, the limit is {}",
                           text::iec_size(bytes), text::iec_size(limit()))
                .with_hint(fmt::format("--max-mem {}MiB", bytes / kMiB * 2))) {}

void take(uint64_t bytes) {
  // What else is alive counts against the same bound; small steps are followed
  // by large ones.
  if (bytes >= kLooked && !heap::has_room(bytes)) throw heap::Full();
  const uint64_t after = taken_now += bytes;
  if (after <= limit()) {
    uint64_t known = highest;
    while (known < after && !highest.compare_exchange_weak(known, after)) {
    }
    return;
  }
  taken_now -= bytes;
  throw Full(after);
}

void give(uint64_t bytes) noexcept { taken_now -= bytes; }

void fail(const std::string& path, uint64_t taken, uint64_t read,
          uint64_t size) {
  const auto part = static_cast<double>(std::max<uint64_t>(read, 1)) /
                    static_cast<double>(std::max<uint64_t>(size, 1));
  const double whole = static_cast<double>(taken) / std::min(part, 1.0);
  refuse(path, static_cast<uint64_t>(whole), used() - std::min(used(), taken),
         size, true, false);
}

void check(const std::string& path, uint64_t wanted, uint64_t size) {
  const bool dense = wanted > std::max(kFree, kMostPerByte * size);
  if (dense || wanted + used() > limit())
    refuse(path, wanted, used(), size, false, dense);
}

}  // namespace ckpt::tree_memory
