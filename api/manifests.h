// SPDX-License-Identifier: Apache-2.0
// The manifests of a run: the one that the target gets, and the one that the
// source may have.
#pragma once

#include <string>

#include "api/write.h"
#include "lib/io/staging.h"
#include "reshard/engine.h"

namespace ckpt::library {

void write_manifest(const Prepared& prepared, const reshard::RunResult& result,
                    io::Staging& staging);

// The manifest beside the source; "" if it is absent or stale.
std::string source_manifest(const Catalog& source);

// Throws input_error if the source was written by ckpt and is not what was
// written.
void check_source_manifest(const Prepared& prepared,
                           const reshard::RunResult& result,
                           const reshard::RunOptions& options);

}  // namespace ckpt::library
