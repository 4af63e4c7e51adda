// SPDX-License-Identifier: Apache-2.0
// Puts a new name in place of nothing, an empty directory, or what is there,
// without a moment in which the name is half-done.
#pragma once

#include <string>

namespace ckpt::io {

enum class RenameNew { kNothing, kOverEmpty };

// Renames where nothing exists (or, for directories, an empty one). Returns
// false if something does: it stays as it is, whenever it appeared. Uses
// RENAME_NOREPLACE. Where the file system lacks it: rename() for a directory,
// which no system lets replace more than an empty one, and link() + unlink()
// for a file; where there are no links either, a check before rename(), under
// the target's lock. Throws kIo.
bool rename_new(const std::string& from, const std::string& to, RenameNew over);

// rename(). Throws kIo.
void replace_by_rename(const std::string& from, const std::string& to);

// Puts a directory in place of another and returns where the other is now. Uses
// RENAME_EXCHANGE, so that the name is never absent; where the file system
// lacks it, two renames via FROM.old. Throws kIo.
std::string trade_places(const std::string& from, const std::string& to);

// After an interrupted exchange by two renames: puts the old one back if
// nothing is in its place, else removes it.
void restore_replaced(const std::string& old, const std::string& to);

}  // namespace ckpt::io
