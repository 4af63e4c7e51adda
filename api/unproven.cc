// SPDX-License-Identifier: Apache-2.0
#include "api/unproven.h"

#include <cstdint>
#include <string>
#include <utility>

#include "api/manifests.h"
#include "ckpt/error.h"
#include "reshard/crc_check.h"

namespace ckpt::library {

void check_read(Prepared& prepared, const reshard::RunResult& result,
                const reshard::RunOptions& run, const SaveOptions& options) {
  const auto note = [&](size_t tensor, std::string why) {
    prepared.unproven.tensors.try_emplace(
        prepared.target.catalog.tensors.at(tensor).name, std::move(why));
  };
  if (options.allow_replica_mismatch) {
    for (const reshard::ReplicaCheck& check : prepared.plan.replicas)
      if (result.source[check.first] != result.source[check.second])
        note(check.tensor, "its copies differ");
  } else {
    reshard::check_replicas(prepared.plan, result, prepared.source);
  }
  if (options.ignore_checksums) {
    for (const uint32_t tensor :
         reshard::tensors_of(prepared.plan, prepared.source, result.wrong_crcs))
      note(tensor, "a record that it was read from has another CRC-32");
  } else {
    reshard::check_crcs(result, prepared.plan, prepared.source);
  }
  each_unproven(prepared, note);
  if (options.ignore_checksums && !run.digest) return;
  check_source_manifest(prepared, result, run,
                        [&](size_t tensor, const Error& error) {
                          if (!options.ignore_checksums) throw error;
                          note(tensor, error.problem());
                        });
}

void check_copied(Prepared& prepared, const TargetFile& file,
                  const SaveOptions& options,
                  const std::function<void()>& check) {
  try {
    check();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged || !options.ignore_checksums) throw;
    prepared.unproven.files.try_emplace(file.path, error.problem());
  }
}

}  // namespace ckpt::library
