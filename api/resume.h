// SPDX-License-Identifier: Apache-2.0
// What an earlier run of the same work left, and how far it is believed.
#pragma once

#include "api/sending.h"
#include "api/write.h"
#include "lib/io/staging.h"
#include "reshard/journal.h"

namespace ckpt::library {

// The journal of this work: an earlier run's if that can be resumed.
reshard::Journal start_journal(uint64_t work, io::Staging& staging,
                               const SaveOptions& options);

// What an earlier run did is believed as far as its files show it, or the
// server that it was sent to (`sending`, if there is one). Those who can't wait
// may trust the files, unless something failed to be written.
void prove_journal(const Prepared& prepared, const io::Staging& staging,
                   const Sending* sending, reshard::Journal& journal,
                   const SaveOptions& options, const reshard::RunOptions& run);

}  // namespace ckpt::library
