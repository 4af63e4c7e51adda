// SPDX-License-Identifier: Apache-2.0
// What a step holds and nothing reads: files of another save, weights of
// modules beside the model. Each adds problems to the catalog. Private to this
// room.
#pragma once

#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/found.h"

namespace ckpt::runs {

// Shards beside an index that is opened by its own name, which it does not
// list.
void note_unread_shards(const std::string& index, Catalog& catalog);

// Weights in folders below that no part of the step has read: modules beside
// the model, other adapters; in `homes` a copy for transformers.
void note_unread_weights(const std::string& folder,
                         const std::vector<std::string>& homes,
                         Catalog& catalog);

// Files of ranks' random numbers that a save of more ranks left, or of one
// alone. `ranks`: how many wrote the model; 0: not known. False if there are
// none.
bool note_left_ranks(const Part& part, const std::string& folder,
                     const std::vector<Name>& names, uint64_t ranks,
                     Catalog& catalog);

}  // namespace ckpt::runs
