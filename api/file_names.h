// SPDX-License-Identifier: Apache-2.0
// The names of a target's files, before the first byte of them is written.
#pragma once

#include "formats/format.h"

namespace ckpt::library {

// Formats that name files after tensors take what a tensor is called. Throws
// unfaithful_error, with the tensor and what to do, for two files of one name,
// a file where another file's directory is to be (`metadata.json` as a tensor
// of a zarr checkpoint), names that lead elsewhere (`..`, `/abs`), have a NUL
// or are longer than a file system has room for.
void check_file_names(const Target& target);

}  // namespace ckpt::library
