// SPDX-License-Identifier: Apache-2.0
// What --overwrite may replace.
#pragma once

#include <string>
#include <vector>

#include "api/write/prepared.h"

namespace ckpt::library {

// Throws unfaithful_error naming what is at the target's path and is not
// accounted for: not listed by ckpt's manifest, not part of the checkpoint that
// a reader finds there (formats/accounted.h), and not written again by this run
// with the same bytes. A file that no reader knows is refused, too.
void check_replaceable(const Prepared& prepared);

// Throws unfaithful_error naming a file beside a single file that the run would
// write with other bytes: one of the source always, another one unless
// options.overwrite.
void check_beside(const Prepared& prepared, const SaveOptions& options);

// Throws unfaithful_error if `target` is a directory that holds the working
// directory or one of `sources`, at whatever depth: it can't be replaced.
void check_place(const std::string& target,
                 const std::vector<std::string>& sources);

}  // namespace ckpt::library
