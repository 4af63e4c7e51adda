// SPDX-License-Identifier: Apache-2.0
// What a run may take, and what it takes at most.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/write/decoded.h"
#include "api/write/manifests.h"
#include "api/write/write.h"
#include "api/write/write_steps.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/manifest.h"
#include "reshard/cuda/load.h"
#include "reshard/plan/plan_size.h"
#include "reshard/plan/planner.h"
#include "reshard/ranks/job.h"
#include "reshard/ranks/run.h"
#include "reshard/sources/source_crcs.h"

namespace ckpt::library {
namespace {

// The tensors whose bytes prove something before the run.
std::set<std::string_view> claimed_tensors(const Catalog& source) {
  std::set<std::string_view> names;
  for (const Claim& claim : source.claims)
    names.insert({claim.exact, claim.rounded});
  return names;
}

}  // namespace

reshard::RunOptions limits(const Prepared& prepared,
                           const SaveOptions& options) {
  reshard::RunOptions run;
  run.threads = options.threads;
  run.max_mem = options.max_mem - io::share_remote_memory(options.max_mem);
  reshard::make_room(prepared.held, prepared.planning, prepared.path,
                     run.max_mem);
  run.io = options.io;
  return run;
}

reshard::RunOptions writing(const Prepared& prepared,
                            const SaveOptions& options) {
  reshard::RunOptions run = limits(prepared, options);
  run.reads_once = true;
  if (options.cuda) run.device = &reshard::CudaModule::get();
  return run;
}

namespace {

// Sums of the source's records as its bytes pass by.
uint64_t sum_bytes(const Catalog& source) {
  return source.crcs.size() * reshard::SourceCrcs::kMemory;
}

// An entry of a std::map or std::set: four words of the tree around it.
template <typename Entry>
constexpr uint64_t kNode = sizeof(Entry) + 4 * sizeof(void*);

// A tensor's name where it is not within the string itself, and its entry.
uint64_t entry_bytes(const Tensor& tensor) {
  return kNode<decltype(Manifest::tensors)::value_type> + tensor.name.size() +
         1;
}

// A string or vector that grows is copied to one of twice its size, of which as
// much is touched as was copied.
constexpr uint64_t kGrowing = 2;

// The target's manifest, as entries and as text.
uint64_t target_manifest_bytes(const Prepared& prepared) {
  // {"dtype": "f8_e4m3", "shape": [4096, 4096], "digest": "…"} in a line, with
  // 32 digits of digest; ranges have up to 12 digits, for files of a TB.
  constexpr uint64_t kLine = 2 + 64 + 32, kDigits = 12 + 2;
  constexpr uint64_t kRange = 2 * kGrowing * (sizeof(uint64_t) + kDigits);
  uint64_t bytes = 0;
  // Each of what is written beside tensors is a range, or a part of one.
  for (const TargetFile& file : prepared.target.files)
    bytes += kRange *
             (file.literals.size() + file.shared.size() + file.carried.size());
  for (const Tensor& tensor : prepared.target.catalog.tensors)
    bytes += entry_bytes(tensor) + kGrowing * (kLine + tensor.name.size());
  return bytes;
}

// The source's, as text and as entries, and what compares it with what was
// read (check_source_manifest): two lists of names, one by digests in
// hexadecimal.
uint64_t source_manifest_bytes(const Catalog& source, const std::string& path) {
  constexpr uint64_t kLists =
      kNode<std::string> +
      kNode<std::pair<const std::string, std::vector<std::string>>> +
      sizeof(std::string) + 2 * sizeof(Digest) + 1;
  uint64_t bytes = io::file_size(path).value_or(0);
  for (const Tensor& tensor : source.tensors)
    bytes += entry_bytes(tensor) + kLists + 2 * (tensor.name.size() + 1);
  return bytes;
}

// What is read ahead of servers, no more than lies there, and what the client
// takes: 10 MiB for its libraries, 0.4 for each connection by TLS were
// measured.
uint64_t remote_bytes(const Prepared& prepared, const SaveOptions& options) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr uint64_t kClient = 12 * kMiB, kConnection = 2 * kMiB / 5;
  constexpr uint64_t kMostConnections = 128, kRequest = 2 * kMiB;
  const uint64_t share = io::share_remote_memory(options.max_mem);
  if (share == 0) return 0;
  uint64_t there = 0, files = 2;  // those beside it
  for (const File& file : prepared.source.files) {
    if (!io::is_url(file.path)) continue;
    const bool packed = file.codec != Codec::kRaw;
    const uint64_t size = packed ? file.packed_size : file.size;
    there += std::min(size, share - there);
    ++files;
  }
  const uint64_t connections =
      std::min(kMostConnections, files + there / kRequest);
  return there + kClient + connections * kConnection;
}

// What the manifests of both sides take once the buffers are gone.
uint64_t manifest_bytes(const Prepared& prepared, const SaveOptions& options) {
  const uint64_t bytes = options.manifest ? target_manifest_bytes(prepared) : 0;
  // Of a server nobody asks for a file only to know its size.
  if (options.ignore_checksums || io::is_url(prepared.source.path))
    return bytes;
  const std::string known = source_manifest(prepared.source);
  return known.empty() ? bytes
                       : bytes + source_manifest_bytes(prepared.source, known);
}

}  // namespace

uint64_t peak_memory(const Prepared& prepared, const SaveOptions& options) {
  reshard::RunOptions run = writing(prepared, options);
  const reshard::Plan& plan = prepared.plan;
  const uint64_t messages =
      ranks::exchange_memory(run.max_mem) + remote_bytes(prepared, options);
  run.max_mem -= ranks::exchange_memory(run.max_mem);
  const uint64_t making = leave_room(prepared.source, run);
  const uint64_t running = messages + making + reshard::buffer_bytes(plan, run);
  return std::max(prepared.planning,
                  prepared.held + sum_bytes(prepared.source) +
                      std::max(running, manifest_bytes(prepared, options)));
}

void make_plan(Catalog& source, Prepared& prepared, const SaveOptions& options,
               const PlanSeen& seen) {
  constexpr uint64_t kCounted = 1 << 17;
  // Copies that may differ are compared, too: whoever allows it is told.
  constexpr bool kCompare = true;
  reshard::PlanSize& size = prepared.plan_size;
  const bool large =
      reshard::piece_count(source, prepared.target.catalog) >= kCounted;
  prepared.held = reshard::held_bytes(source) +
                  reshard::held_bytes(prepared.target) +
                  prepared.assumed * sizeof(StoredCrc);
  const auto check = [&] {
    prepared.planning = prepared.held += size.bytes();
    if (prepared.in_place && large) {
      const uint64_t pieces = reshard::piece_bytes(source) +
                              reshard::piece_bytes(prepared.target.catalog);
      prepared.planning -= pieces + size.bytes();
      prepared.planning += size.exchanged;
      prepared.held -= pieces;
    }
    limits(prepared, options);
  };
  if (!prepared.shown_only && !large) {
    prepared.plan = reshard::make_plan(source, prepared.target, kCompare);
    size.add(prepared.plan);
    return check();
  }
  std::function<void(const reshard::Plan&)> part;
  if (seen)
    part = [&](const reshard::Plan& plan) {
      seen(plan, source, prepared.target.catalog);
    };
  prepared.plan = reshard::make_plan_sums(source, prepared.target, kCompare,
                                          size, reshard::kKeptPieces, part);
  check();
  if (prepared.shown_only) return;
  if (!prepared.in_place) {
    prepared.plan =
        reshard::make_plan_of_size(source, prepared.target, kCompare, size);
    return;
  }
  const std::set<std::string_view> claimed = claimed_tensors(source);
  prepared.plan = reshard::make_plan_in_place(
      source, prepared.target, kCompare, size,
      [&](const Tensor& tensor) { return claimed.contains(tensor.name); });
}

}  // namespace ckpt::library
