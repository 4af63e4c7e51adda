// SPDX-License-Identifier: Apache-2.0
// Checking the checksums that a container stores (zip records).
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/run/run_options.h"

namespace ckpt::reshard {

// Reads every range of catalog.crcs once; returns a damage problem for each
// range that can't be read or whose checksum differs.
std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options);

// Only of these, by their index; with that index, in no order. `plan`: names
// the tensors where pieces are gone.
std::vector<std::pair<uint32_t, Problem>> check_crcs(
    const Catalog& catalog, const std::vector<uint32_t>& which,
    const RunOptions& options, const Plan* plan = nullptr);

// Those problems as check_crcs(catalog, options) returns them: with tensors, by
// file.
std::vector<Problem> named_problems(
    const Catalog& catalog, std::vector<std::pair<uint32_t, Problem>> found);

// The tensors that begin in these ranges, in the order of the ranges; "" for
// none.
std::vector<std::string> tensors_in(const Catalog& catalog,
                                    const std::vector<StoredCrc>& ranges);

// The same of a range that a plan reads.
std::string tensor_in(const Plan& plan, const StoredCrc& range);

// The tensors of a plan that are read from any of these records, by index.
std::set<uint32_t> tensors_of(const Plan& plan, const Catalog& catalog,
                              const std::vector<uint32_t>& which);

// Bytes that check_crcs reads.
uint64_t crc_bytes(const Catalog& catalog);

}  // namespace ckpt::reshard
