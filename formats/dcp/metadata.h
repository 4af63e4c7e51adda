// SPDX-License-Identifier: Apache-2.0
// The .metadata file of a PyTorch distributed checkpoint: which boxes each
// tensor is made of, and which file holds the archive of each box.
//
//   Metadata
//     .state_dict_metadata  name -> size, dtype, chunks [(offsets, sizes)]
//                           name -> bytes (an object)
//     .storage_data         (name, offsets) -> (file, offset, length)
//     .planner_data         name -> path in the nested state dict
//
// A pickle of dataclasses; nothing is executed. The formats built on it read it
// too: Megatron's torch_dist, OLMo-core.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ckpt/catalog.h"
#include "formats/dcp/entries.h"
#include "formats/format.h"

namespace ckpt::dcp {

// Reads and checks one .metadata file: boxes lie inside their tensors and each
// has an item, file names stay inside the directory, ranges lie inside the
// files. Throws input_error or unsafe_error.
Metadata read_metadata(const std::string& path,
                       const formats::ReadOptions& options);

// Throws input_error if the chunks of a tensor have more or fewer elements than
// the tensor. (The planner proves that no two overlap.)
void check_cover(const Metadata& metadata);

// Adds files, tensors (kind other, extents with `archive`), objects, problems,
// globals, and the catalog's locate and load_objects. Takes the chunks.
void add_to_catalog(Metadata& metadata, Catalog& catalog,
                    const formats::ReadOptions& options = {});

// The work that add_to_catalog sets up for ckpt::locate: opens the archive of
// every piece that has one. For readers that add their own pieces.
void locate_items(Catalog& catalog);
// The same for a dry run (containers/assume.h), if there are at least this many
// items. Opening fewer takes next to no time.
inline constexpr uint64_t kManyItems = 65'536;
uint64_t sample_items(Catalog& catalog, uint64_t least = kManyItems);
// For Catalog::archive_opener: does both. There is only one instance.
std::shared_ptr<const ArchiveOpener> item_opener();

}  // namespace ckpt::dcp
