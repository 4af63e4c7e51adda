// SPDX-License-Identifier: Apache-2.0
// What a manifest says about bytes that are not any tensor's.
#pragma once

#include <string>

#include "api/write/prepared.h"
#include "ckpt/catalog.h"
#include "lib/manifest.h"

namespace ckpt::library {

// Adds the digests of all that tensors' digests don't cover, of the files as
// they stand below `root`; of a single file its identity too.
void add_contents(const Prepared& prepared, const std::string& root,
                  Manifest& manifest);

// Zip archives beside the tensors (states of trainers, of data readers) store
// checksums: adds them to the catalog's, with their files; of archives with
// tensors, those of all other records. An archive that can't be read is a
// problem ("damaged").
void add_carried_crcs(Catalog& catalog);

// Checks the checksums that a file stores, if it is a zip archive. Throws
// input_error.
void check_stored_crcs(const io::Handle& file);

// The same for what a target's file takes unchanged from the source's.
void check_carried(const Catalog& source, const TargetFile& file);

}  // namespace ckpt::library
