// Checking the checksums that a container stores (zip records).
#pragma once

#include <vector>

#include "ckpt/catalog.h"
#include "reshard/engine.h"

namespace ckpt::reshard {

// Reads every range of catalog.crcs once and returns a damage problem for
// each that does not have its checksum, or can't be read.
std::vector<Problem> check_crcs(const Catalog& catalog,
                                const RunOptions& options);

// Bytes that check_crcs reads.
uint64_t crc_bytes(const Catalog& catalog);

}  // namespace ckpt::reshard
