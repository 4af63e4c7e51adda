// SPDX-License-Identifier: Apache-2.0
// The manifests of a run: the target's, and the source's if it has one.
#pragma once

#include <string>

#include "api/prepared.h"
#include "lib/io/staging.h"
#include "reshard/engine.h"

namespace ckpt::library {

// Returns its bytes.
uint64_t write_manifest(const Prepared& prepared,
                        const reshard::RunResult& result, io::Staging& staging);

// The manifest beside the source; "" if it is absent or stale.
std::string source_manifest(const Catalog& source);

// Throws input_error if ckpt wrote the source and it has changed since.
void check_source_manifest(const Prepared& prepared,
                           const reshard::RunResult& result,
                           const reshard::RunOptions& options);

}  // namespace ckpt::library
