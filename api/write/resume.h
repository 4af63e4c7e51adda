// SPDX-License-Identifier: Apache-2.0
// What an earlier run of the same work left, and how much of it to believe.
#pragma once

#include "api/write/prepared.h"
#include "api/write/sending.h"
#include "lib/io/staging.h"
#include "reshard/run/journal.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

// The journal of this work; an earlier run's if that can be resumed.
reshard::Journal start_journal(uint64_t work, io::Staging& staging,
                               const SaveOptions& options);

// Believes of an earlier run what its files show, or the server that they were
// sent to (`sending`, if there is one). options.trust_staging believes the
// files without reading them, unless a write failed. After a failed flush its
// files are copied before, for they are not to be used themselves.
void prove_journal(const Prepared& prepared, io::Staging& staging,
                   const Sending* sending, reshard::Journal& journal,
                   const SaveOptions& options, const reshard::RunOptions& run);

}  // namespace ckpt::library
