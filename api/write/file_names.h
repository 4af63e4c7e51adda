// SPDX-License-Identifier: Apache-2.0
// Checks the names of a target's files before the first byte is written.
#pragma once

#include "formats/format.h"

namespace ckpt::library {

// Some formats name files after tensors. Throws unfaithful_error, with the
// tensor and what to do, for two files of one name, a file where another needs
// a directory (a tensor `metadata.json` in a zarr checkpoint), and names that
// lead elsewhere (`..`, `/abs`), contain a NUL or are too long for a file
// system.
void check_file_names(const Target& target);

}  // namespace ckpt::library
