// SPDX-License-Identifier: Apache-2.0
// Reads and writes the payload of catalogs in the plainest way: no plan, no
// engine, whole tensors in memory. What a Reader found and a Writer laid out
// can be checked without trusting anything else.
#pragma once

#include <string>

#include "ckpt/layout.h"

namespace ckpt::test {

// Returns the row-major little-endian bytes of a tensor, from whatever pieces
// it has: boxes, flat ranges, strides, deflated files, swapped bytes.
// Conjugated and negated elements come out as their logical values. Throws if
// elements are missing.
std::string content(const Catalog& catalog, const Tensor& tensor);

// Writes the files of a target: literals, late checksums, and the pieces of
// each tensor filled from the source tensor of the same position (its bytes
// as they are: no casts). `destination` is the directory, or the file if the
// target is one. Throws if a byte of a file is covered twice or not at all.
void materialise(const Catalog& source, const Target& target,
                 const std::string& destination);

}  // namespace ckpt::test
