// SPDX-License-Identifier: Apache-2.0
// Files beside the tensors that a run needs but no reader opens: scheduler, RNG
// and data loader state; configurations and tokenizers.
#pragma once

#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt::formats {

// The kind of a problem: a file that a downloader has not finished.
inline constexpr std::string_view kUnfinishedFile = "unfinished_file";

// Adds a damage of that kind for each of the checkpoint's files beside which
// the state of its download lies. Such a file is as long as it will be: its
// headers open before its tensors are there.
void find_unfinished(Catalog& catalog);

// Checks the catalog's file list for such files that are empty ("empty_file")
// and for JSON files that don't parse ("unreadable_json"). Pickles are left to
// the scan for code.
std::vector<Problem> check_loose_files(const Catalog& catalog);

// Warns of JSON documents that are copied and don't parse, which the target
// will have as the source does ("unreadable_json"). Local files only: those on
// a server come once, when they are copied.
void tell_unreadable_copies(Target& target);

}  // namespace ckpt::formats
