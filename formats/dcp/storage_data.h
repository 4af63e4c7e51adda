// SPDX-License-Identifier: Apache-2.0
// storage_data of a .metadata file: which file holds the item of each chunk and
// object, and where in it. Private to this room.
#pragma once

#include "formats/dcp/entries.h"
#include "formats/dcp/graph.h"

namespace ckpt::dcp {

// Fills files, sizes, transforms and the `stored` of all chunks and bytes
// entries. Throws input_error for a malformed item, a range outside its file, a
// missing file or an entry without an item; unsafe_error for a file name that
// leads out of the directory.
void read_storage_data(Graph& graph, pickle::Id storage_data,
                       Metadata& metadata);

}  // namespace ckpt::dcp
