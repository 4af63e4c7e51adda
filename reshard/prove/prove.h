// SPDX-License-Identifier: Apache-2.0
// Proves a catalog's claims: that fp32 main weights, rounded to the dtype of
// the weights in use, are those weights, bit for bit.
//
//   exact    f32   0x3f8ccccd  1.1
//   rounded  bf16      0x3f8d  1.1015625     round to nearest, ties to even
//
// A flat buffer whose parameters were taken in the wrong order, or cut at the
// wrong element, fails here and is not written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/engine.h"

namespace ckpt::reshard {

// Bytes that a proof reads.
uint64_t claim_bytes(const Catalog& catalog);

// Reads both sides of each claim whose tensors are in the catalog, tile by
// tile, within options.max_mem and on options.threads. Returns a problem
// (damage, "main_weight") for each claim that does not hold, naming the first
// element. A claim about dtypes that can't be compared does not hold.
//
// Main weights that stand beside their weights are proven as well, without a
// claim: what nobody inferred is not refused, but may still be wrong. They have
// to be what their trainer rounds (reshard/prove/rounding.h).
std::vector<Problem> check_claims(const Catalog& catalog,
                                  const RunOptions& options);

// For whoever does not read everything: the main weights that stand beside
// their weights, or some hundreds of them, with these; and what the first
// elements of such a catalog, located, say.
Catalog main_weights(const Catalog& catalog);
std::vector<Problem> sample_main_weights(const Catalog& catalog,
                                         const RunOptions& options);

// Throws unfaithful_error for the first claim that does not hold.
void prove_claims(const Catalog& catalog, const RunOptions& options);

// The first element of `exact` that does not round to that of `rounded`: f32 to
// f32, bf16 or f16. All NaNs are equal.
std::optional<uint64_t> first_unlike(std::span<const std::byte> exact,
                                     std::span<const std::byte> rounded,
                                     DType dtype);

// Reads the tensors that are not written (Catalog::redundant), within
// options.max_mem. Throws unfaithful_error, naming the element, for the first
// that is not what it must be.
void prove_redundant(const Catalog& catalog, const RunOptions& options);
uint64_t redundant_bytes(const Catalog& catalog);

// The same for what ranks hold of one tensor while no rule says how they share
// it (lib/unruled.h): call before it is read for the whole.
void prove_shared(const Catalog& catalog, const Tensor& tensor);

}  // namespace ckpt::reshard
