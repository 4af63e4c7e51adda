// SPDX-License-Identifier: Apache-2.0
// Steps of a write that one process does, however the payload moves.
#pragma once

#include <string>

#include "api/write/prepared.h"
#include "lib/io/staging.h"
#include "reshard/run/output.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

// True if anything needs the digests of tensors.
bool wants_sums(const Prepared& prepared, const SaveOptions& options);

io::StagingOptions staging_options(const Prepared& prepared,
                                   const SaveOptions& options);

// What may be read with, and then written with. A source that is rewritten is
// rarely read again.
reshard::RunOptions limits(const Prepared& prepared,
                           const SaveOptions& options);
reshard::RunOptions writing(const Prepared& prepared,
                            const SaveOptions& options);

// Large plans are counted before they are made: what doesn't fit into the bound
// is refused before it takes the memory.
void make_plan(Catalog& source, Prepared& prepared, const SaveOptions& options,
               const PlanSeen& seen);

// Adds warnings of weights and main weights that don't belong together, which
// they won't in any target. Only their first elements are read: a run must not
// take longer by a third to find what `verify --deep` finds. What is in memory
// or far away is its owner's.
void warn_of_main_weights(Catalog& source, const SaveOptions& options);

// Creates the files at full size. Of an earlier run those are kept that have
// payload, which its journal is about; what else it wrote nothing proves.
void make_files(const Prepared& prepared, io::Staging& staging, bool resuming);

// Writes everything but the payload, after it: literals, checksums and, if not
// there yet, `carried` ranges.
void write_rest(const Prepared& prepared, reshard::Output& output,
                const std::string& root, bool carried);

// Flushes, and renames into place.
void publish(const Prepared& prepared, io::Staging& staging,
             const SaveOptions& options);

}  // namespace ckpt::library
