// SPDX-License-Identifier: Apache-2.0
// What becomes of each file of a source: its tensors and values are converted,
// it is carried as it is, or it is left out with a reason. Nothing is dropped
// silently.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::formats {

// A Writer's own decision not to write a sidecar.
void leave_out(const Sidecar& sidecar, const Catalog& source,
               std::string reason, Target& target);

// True if the file is one of Traits::own_files. `path` is relative to the
// checkpoint.
bool is_format_file(std::string_view format, std::string_view path);

// Called once a target is laid out. Files that neither hold tensors nor were
// placed by the Writer are copied to Target::beside, unless they would mean
// something else there: weights, training state in another format, names that
// the target uses itself. Fills Target::fates; one warning says how many files
// are left out. Throws unsafe_error for a link that leads out of the source
// (the blobs of its own Hugging Face cache don't count as outside),
// missing_error for a link to nothing, input_error for a FIFO or a device.
void settle_files(const Catalog& source, Target& target);

}  // namespace ckpt::formats
