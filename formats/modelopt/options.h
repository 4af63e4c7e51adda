// SPDX-License-Identifier: Apache-2.0
// The options of ModelOpt's format: which blocks are on which rank, or files
// for a block's parts.
//
//   blocks        "0-3,8/4-7": the blocks of each rank; not set: even runs
//   block-files   the parts of each block are a file, not a rank's shards
//   form          shards or blocks; not set: as in the source
#pragma once

#include <string>
#include <vector>

#include "ckpt/layout.h"
#include "formats/traits.h"

namespace ckpt::modelopt {

std::vector<FormatOption> options();

// kShards or kBlocks; "": as in the source.
std::string form_of(const Layout& layout);

// Lists of blocks stand for ranks; block files have no ranks (Traits::settle).
void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout);

}  // namespace ckpt::modelopt
