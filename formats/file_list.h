// SPDX-License-Identifier: Apache-2.0
// Lists every file of what was opened, and which part of a training run it is.
//
//   path opened         what is listed, relative to
//   a directory         all that is below it; the directory
//   a training root     all that is below the checkpoint that was followed to,
//                       and what lies beside it; the root
//   a file              the files that tensors are read from; its directory
//
// Links to files count as files; links to directories are not followed. What
// ckpt itself leaves beside a checkpoint (manifest, staging) is not listed.
#pragma once

#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// The part by the name alone, "model" for files of weights: "config",
// "tokenizer", "optim", "scheduler", "rng", "trainer", "dataloader", "other".
// `path` is relative to the checkpoint.
std::string_view part_by_name(std::string_view path);

// True for a part that is not the model, and that training goes on with.
bool is_state(std::string_view part);

// Manifests and staging directories.
bool is_own_file(std::string_view name);

// Fills Catalog::file_root and Catalog::file_list. Files that hold tensors are
// "model" or "optim" by their contents, whatever their names. If a reader has
// already filled the list, its parts are kept. `opened` is the path that the
// user gave. Throws kIo for a directory that can't be listed.
void list_files(const std::string& opened, Catalog& catalog);

}  // namespace ckpt::formats
