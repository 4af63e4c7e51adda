// SPDX-License-Identifier: Apache-2.0
#include "api/write/write_steps.h"

#include <algorithm>

#include "api/write/manifests.h"
#include "api/write/replace.h"
#include "api/write/sending.h"
#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/manifest.h"
#include "lib/session.h"
#include "lib/trace.h"
#include "reshard/prove/prove.h"
#include "reshard/ranks/run.h"
#include "reshard/sources/sources.h"

namespace ckpt::library {
namespace {

void carry(const Prepared& prepared, const TargetFile& file,
           const std::string& root) {
  if (file.carried.empty()) return;
  const io::Handle to = io::Handle::open_write(io::join(root, file.path));
  reshard::HandleCache sources;
  for (const CarriedRange& range : file.carried) {
    const File& from = prepared.source.files.at(range.source_file);
    if (from.codec != Codec::kRaw)
      throw bug_error({from.path, {}}, "a packed range is carried over");
    io::copy_range(*sources.get(from.path), range.source_offset, to,
                   range.offset, range.size);
  }
}

// Something appeared there while the target was written.
[[noreturn]] void keep_whole(const Error& error, io::Staging& staging) {
  staging.keep();
  throw error.with_hint(
      "it appeared during the run and was left as it is; what was "
      "written is whole" +
      std::string(io::is_target_url(staging.target())
                      ? ", sent and not seen, and noted in "
                      : " in ") +
      staging.root() +
      ": run it again with --resume when that name is free, or with --resume "
      "--overwrite to replace it");
}

}  // namespace

// A run without digests need not read any bytes except those of replicas. It is
// faster, and where blocks can be shared with the source, nothing is read at
// all.
bool wants_sums(const Prepared& prepared, const SaveOptions& options) {
  return options.manifest || prepared.sums ||
         (!options.ignore_checksums &&
          !source_manifest(prepared.source).empty());
}

io::StagingOptions staging_options(const Prepared& prepared,
                                   const SaveOptions& options) {
  return {.single_file = prepared.single_file,
          .overwrite = options.overwrite,
          .resume = options.resume,
          .sync = options.sync,
          .companions = {std::string(kManifestName)}};
}

void warn_of_main_weights(Catalog& source, const SaveOptions& options) {
  const bool far =
      io::is_url(source.path) ||
      std::ranges::any_of(source.files, [](const File& file) {
        return file.codec == Codec::kMemory || io::is_url(file.path);
      });
  if (far) return;
  Catalog some = reshard::main_weights(source);
  if (some.tensors.empty()) return;
  locate(some);
  reshard::RunOptions run;
  run.threads = options.threads;
  run.max_mem = options.max_mem;
  for (Problem& problem : reshard::sample_main_weights(some, run)) {
    problem.severity = Problem::Severity::kWarning;
    source.problems.push_back(std::move(problem));
  }
}

void make_files(const Prepared& prepared, io::Staging& staging, bool resuming) {
  if (!resuming)
    staging.check_space(io::is_target_url(prepared.path)
                            ? spool_bytes(prepared)
                            : prepared.file_bytes());
  std::vector<bool> kept(prepared.target.files.size());
  const reshard::Plan& plan = prepared.plan;
  for (const reshard::Job& job : plan.jobs)
    for (uint32_t t = 0; resuming && t < job.targets; ++t)
      kept.at(plan.lanes[job.first_target + t].file) = true;
  for (const reshard::Gather& gather : plan.gathers)
    if (resuming && gather.target_file != reshard::kNone)
      kept.at(gather.target_file) = true;
  for (size_t i = 0; i < kept.size(); ++i) {
    const TargetFile& file = prepared.target.files[i];
    staging.create(file.path, file.size, kept[i]);
  }
}

// Writes what is not payload.
void write_rest(const Prepared& prepared, reshard::Output& output,
                const std::string& root, bool carried) {
  for (uint32_t f = 0; f < prepared.target.files.size(); ++f) {
    const TargetFile& file = prepared.target.files[f];
    if (!file.copy_of.empty()) continue;
    output.write_literals(f);
    if (carried) carry(prepared, file, root);
  }
}

void publish(const Prepared& prepared, io::Staging& staging,
             const SaveOptions& options) {
  const trace::Span span("publish");
  staging.flush();
  Session::current()->watch.check_unchanged();
  ranks::remove_journals(staging.journal_path());
  try {
    if (options.overwrite) check_replaceable(prepared);
    staging.publish();
  } catch (const Error& error) {
    if (!staging.is_published() && error.code() == ExitCode::kUnfaithful)
      keep_whole(error, staging);
    throw;
  }
  if (!staging.leftover().empty() && options.note)
    options.note(prepared.path +
                 " is written; what it replaced could not be removed: " +
                 staging.leftover());
}

}  // namespace ckpt::library
