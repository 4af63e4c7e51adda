// SPDX-License-Identifier: Apache-2.0
// What a run may take, and what it takes at most.
#include <algorithm>
#include <string>

#include "api/decoded.h"
#include "api/manifests.h"
#include "api/write.h"
#include "api/write_steps.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "reshard/cuda/load.h"
#include "reshard/plan_size.h"
#include "reshard/ranks/run.h"

namespace ckpt::library {

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
  constexpr uint64_t kEach = 56;  // reshard/source_crcs.h
  return source.crcs.size() * kEach;
}

// What the manifests of both sides take once the buffers are gone: the
// target's as numbers and as a text that grows, the source's as values.
uint64_t manifest_bytes(const Prepared& prepared, const SaveOptions& options) {
  constexpr uint64_t kNumber = 2 * sizeof(uint64_t) + 2 * 12;
  constexpr uint64_t kEntry = 256, kOfText = 4;
  uint64_t bytes = 0;
  if (options.manifest) {
    for (const TargetFile& file : prepared.target.files)
      bytes +=
          2 * kNumber *
          (file.literals.size() + file.shared.size() + file.carried.size());
    for (const Tensor& tensor : prepared.target.catalog.tensors)
      bytes += 2 * tensor.name.size() + kEntry;
  }
  // Of a server nobody asks for a file only to know its size.
  if (options.ignore_checksums || io::is_url(prepared.source.path))
    return bytes;
  const std::string known = source_manifest(prepared.source);
  return known.empty() ? bytes
                       : bytes + kOfText * io::file_size(known).value_or(0);
}

}  // namespace

uint64_t peak_memory(const Prepared& prepared, const SaveOptions& options) {
  reshard::RunOptions run = writing(prepared, options);
  const reshard::Plan& plan = prepared.plan;
  const uint64_t messages = ranks::exchange_memory(run.max_mem) +
                            io::share_remote_memory(options.max_mem);
  run.max_mem -= ranks::exchange_memory(run.max_mem);
  const uint64_t making = leave_room(prepared.source, run);
  const uint64_t running = messages + making + reshard::buffer_bytes(plan, run);
  return std::max(prepared.planning,
                  prepared.held + sum_bytes(prepared.source) +
                      std::max(running, manifest_bytes(prepared, options)));
}

}  // namespace ckpt::library
