// SPDX-License-Identifier: Apache-2.0
// Assembles tensors and writes targets element by element: slow, plain and
// independent of the engine.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::test {

// Returns the row-major content of a tensor. Throws std::runtime_error if its
// pieces leave an element out, if two of them overlap without being replicas,
// or if replicas differ.
std::string assemble(const Catalog& catalog, const Tensor& tensor);

// Returns the files of a target, filled with the content of the source's
// tensors of the same names, and with checksums. Throws std::runtime_error if
// literals and payload don't cover each file exactly once.
std::vector<std::string> fill(const Catalog& source, const Target& target);

// Writes the files of `fill` and the copies below `directory`.
void write_files(const Catalog& source, const Target& target,
                 const std::string& directory);

}  // namespace ckpt::test
