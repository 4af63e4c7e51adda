// SPDX-License-Identifier: Apache-2.0
// What a checksum, a copy or the source's manifest contradicts is refused; or
// written all the same, if that was asked for, and marked in the manifest.
#pragma once

#include <functional>

#include "api/engine.h"
#include "api/write/prepared.h"
#include "ckpt/ckpt.h"
#include "ckpt/layout.h"
#include "reshard/ranks/run.h"

namespace ckpt::library {

// Before elements are computed with, which pass no checksum on their way:
// throws input_error for a record whose CRC-32 is another.
void need_crcs(const Catalog& source, const Engine& engine);
// The same for whatever a list beside the source, or its manifest, contradicts.
void need_stored(const Catalog& source, const Engine& engine);

// Before anything is read: the lists of checksums beside the source.
void check_lists(Prepared& prepared, const SaveOptions& options);

// After tensors were read: throws input_error or notes in prepared.unproven,
// as options.ignore_checksums and options.allow_replica_mismatch say.
void check_read(Prepared& prepared, const reshard::RunResult& result,
                const reshard::RunOptions& run, const SaveOptions& options);

// The same of copies alone: of those that may differ, the manifest says by how
// much at most.
void check_copies(Prepared& prepared, const reshard::RunResult& result,
                  const SaveOptions& options);

// The same for a file that is copied, wholly or in part: `check` throws.
void check_copied(Prepared& prepared, const TargetFile& file,
                  const SaveOptions& options,
                  const std::function<void()>& check);

}  // namespace ckpt::library
