// SPDX-License-Identifier: Apache-2.0
// The manifests of a run: the target's, and the source's if it has one.
#pragma once

#include <functional>
#include <string>

#include "api/write/prepared.h"
#include "ckpt/error.h"
#include "lib/io/staging.h"
#include "reshard/engine.h"

namespace ckpt::library {

// Returns its bytes.
uint64_t write_manifest(const Prepared& prepared,
                        const reshard::RunResult& result, io::Staging& staging);

// The manifest beside the source; "" if it is absent or stale.
std::string source_manifest(const Catalog& source);

// Calls `tell` with the planned tensors that are made of what the source's
// manifest has no digest of, and with the reason.
void each_unproven(
    const Prepared& prepared,
    const std::function<void(size_t tensor, const std::string& why)>& tell);

// Gets the index of a planned tensor that is not what it should be, and why.
using OnWrong = std::function<void(size_t tensor, const Error& error)>;

// Calls `wrong` with the input_error of each tensor that has changed since ckpt
// wrote the source.
void check_source_manifest(const Prepared& prepared,
                           const reshard::RunResult& result,
                           const reshard::RunOptions& options,
                           const OnWrong& wrong);

// Reads a source as it is stored, if ckpt wrote it. Throws input_error naming
// the first of its tensors that has changed since. For sources whose elements
// reach the target together with those of others.
void check_against_manifest(const Catalog& source,
                            const reshard::RunOptions& options);

}  // namespace ckpt::library
